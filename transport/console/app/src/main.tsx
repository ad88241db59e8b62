// The entry: who is signed in, then the frame.

import { render } from "preact";
import { effect } from "@preact/signals";
import { me, meFailure, readMe, startSession } from "./client/session";
import { startTheme } from "./client/prefs";
import { startClock } from "./controls/clock";
import { ErrorState } from "./controls/states";
import { App, preload, startFrame } from "./frame/frame";
import { Heading } from "./frame/heading";
import { segments, startRouter } from "./frame/router";
import { startFeed } from "./live/feed";
import { startMe } from "./live/me";

startTheme();
startRouter();
startSession();
startClock();
startFrame();
startMe();

function Root() {
  if (me.value === undefined && meFailure.value)
    return (
      <main class="login-page" id="main">
        <Heading text="svc" />
        <ErrorState problem={meFailure.value} retry={() => void readMe()} />
      </main>
    );
  return <App />;
}

render(<Root />, document.getElementById("app")!);

void readMe();

// The feed, the page's code and who is signed in are asked for together.
let started = false;
effect(() => {
  if (started || (!me.value && segments.value[0] === "login")) return;
  started = true;
  startFeed();
});
preload();
