// The entry: who is signed in, then the frame.

import { render } from "preact";
import { effect } from "@preact/signals";
import { me, meFailure, readMe, startSession } from "./client/session";
import { startTheme } from "./client/prefs";
import { startClock } from "./controls/clock";
import { ErrorState } from "./controls/states";
import { App, startFrame } from "./frame/frame";
import { Heading } from "./frame/heading";
import { startRouter } from "./frame/router";
import { startFeed } from "./live/feed";

startTheme();
startRouter();
startSession();
startClock();
startFrame();

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

let started = false;
effect(() => {
  if (me.value && !started) {
    started = true;
    startFeed();
  }
});

void readMe();
