package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"agentsvc/transport/browser/site"
)

// hand is the mouse and the keyboard of a person in a window, over the debugging port of its Chromium.
type hand struct {
	t    *testing.T
	page *websocket.Conn
	id   int
}

// take waits for the window that shows an address.
func (h *hand) take(ctx context.Context, at, url string) {
	h.t.Helper()
	eventually(h.t, ctx, "the window shows the page", func() bool {
		resp, err := http.Get("http://" + at + "/json/list")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var pages []struct {
			URL string
			At  string `json:"webSocketDebuggerUrl"`
		}
		if json.NewDecoder(resp.Body).Decode(&pages) != nil {
			return false
		}
		for _, p := range pages {
			if strings.HasPrefix(p.URL, url) {
				h.page, err = websocket.Dial(p.At, "", "http://"+at)
				return err == nil
			}
		}
		return false
	})
	h.t.Cleanup(func() { h.page.Close() })
}

// do sends a command and returns its result.
func (h *hand) do(method string, params object) json.RawMessage {
	h.t.Helper()
	result, refused := h.try(method, params)
	if refused != nil {
		h.t.Fatal(method, string(refused))
	}
	return result
}

// try sends a command and returns its result, or what the browser says against it.
func (h *hand) try(method string, params object) (result, refused json.RawMessage) {
	h.t.Helper()
	h.id++
	if err := websocket.JSON.Send(h.page, object{"id": h.id, "method": method, "params": params}); err != nil {
		h.t.Fatal(err)
	}
	_ = h.page.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		var got struct {
			ID            int
			Result, Error json.RawMessage
		}
		if err := websocket.JSON.Receive(h.page, &got); err != nil {
			h.t.Fatal(method, err)
		}
		if got.ID == h.id {
			return got.Result, got.Error
		}
	}
}

// sees waits until an expression is true in the page. A page that is left meanwhile has no answer.
func (h *hand) sees(ctx context.Context, expression string) {
	h.t.Helper()
	eventually(h.t, ctx, expression, func() bool {
		result, _ := h.try("Runtime.evaluate", object{"expression": "!!(" + expression + ")"})
		return strings.Contains(string(result), `"value":true`)
	})
}

// click clicks the middle of an element. modifiers: 1 is Alt, 8 is Shift.
func (h *hand) click(ctx context.Context, selector string, modifiers int) {
	h.t.Helper()
	h.sees(ctx, `document.querySelector('`+selector+`')`)
	var at struct {
		Result struct{ Value []float64 }
	}
	if err := json.Unmarshal(h.do("Runtime.evaluate", object{"returnByValue": true, "expression": `(() => { const e = document.querySelector('` + selector + `'); e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()`}), &at); err != nil || len(at.Result.Value) != 2 {
		h.t.Fatal(selector, err)
	}
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		h.do("Input.dispatchMouseEvent", object{"type": kind, "x": at.Result.Value[0], "y": at.Result.Value[1], "button": "left", "clickCount": 1, "modifiers": modifiers})
	}
}

func (h *hand) types(ctx context.Context, selector, text string) {
	h.t.Helper()
	h.click(ctx, selector, 0)
	h.do("Input.insertText", object{"text": text})
}

// svc skills record opens a window of the person's own Chromium, and what is shown there becomes a skill, once its
// dry run has landed. The Chromium here is the headless one, which a wrapper lets the test reach as a person reaches
// a window: by mouse and keyboard.
func TestAPersonRecordsASkill(t *testing.T) { // not parallel: a browser has a low priority
	c := sharedNode(t).tenant("recorded by hand")
	ctx := within(t, 90*time.Second)
	office := site.New(site.Options{})
	server := httptest.NewServer(office)
	t.Cleanup(server.Close)
	at := reserved(t)
	_, port, _ := strings.Cut(at, ":")
	dir := dataDir(t)
	chromium := filepath.Join(dir, "chromium")
	script := "#!/bin/sh\nexec /usr/lib/chromium/chromium-headless-shell --remote-debugging-port=" + port + " --remote-allow-origins='*' \"$@\"\n"
	if err := os.WriteFile(chromium, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "skill.json")
	cmd := exec.CommandContext(ctx, binary(t), "skills", "record", server.URL+"/orders", "--own", "--name", "Cancel by hand", "--param", "s6=note", "--out", out, "--json")
	cmd.Env = append(append(os.Environ(), c.environment()...), "DISPLAY=:99", "SVC_BROWSER="+chromium)
	var said, answer bytes.Buffer
	cmd.Stderr, cmd.Stdout = &said, &answer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	h := &hand{t: t}
	h.take(ctx, at, server.URL)
	h.types(ctx, "#user", site.User)
	h.types(ctx, "#password", site.Password)
	h.click(ctx, "#sign-in", 0)
	h.sees(ctx, `location.pathname === '/orders' && document.readyState === 'complete'`)
	h.click(ctx, `a[href="/orders/1001"]`, 0)
	h.click(ctx, "#cancel", 0)
	h.types(ctx, "#note", "by hand")
	h.click(ctx, "h1", 1)
	h.click(ctx, "#confirm", 1|8)
	h.sees(ctx, `location.pathname === '/orders/1001/cancel'`)
	_ = websocket.JSON.Send(h.page, object{"id": 1 << 20, "method": "Page.close"}) // the window is closed
	select {
	case err := <-ended:
		if exit := new(exec.ExitError); errors.As(err, &exit) || err != nil {
			t.Fatalf("%v: %s%s", err, said.String(), answer.String())
		}
	case <-ctx.Done():
		t.Fatal("the command did not end")
	}
	var made struct {
		Skill struct {
			ID   string
			Meta struct {
				Refs []string `json:"secret_refs"`
			} `json:"credential_meta"`
		}
	}
	if err := json.Unmarshal(answer.Bytes(), &made); err != nil || fmt.Sprint(made.Skill.Meta.Refs) != "[password]" {
		t.Fatalf("%v: %s%s", err, answer.String(), said.String())
	}
	if office.Effects("1001") != 0 {
		t.Error("showing the commit step committed")
	}
	definition, err := os.ReadFile(out)
	if err != nil || strings.Contains(string(definition)+said.String()+answer.String(), site.Password) {
		t.Errorf("the password is in what was said or written: %v %s%s", err, definition, said.String())
	}
	var tried struct{ Run skillRun }
	c.ask(t, ctx, 200, "POST", "/v1/browser-skills/"+made.Skill.ID+"/dry-run", object{"params": object{"note": "again"}}, &tried)
	if tried.Run.Status != "succeeded" || tried.Run.Precommit == nil || tried.Run.Precommit.Values["note"] != "again" || office.Effects("1001") != 0 {
		t.Errorf("%+v", tried.Run)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "svc-record-*")); len(left) > 0 {
		t.Errorf("its directory is left: %v", left)
	}
}
