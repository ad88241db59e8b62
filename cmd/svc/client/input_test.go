package client

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsvc/cmd/svc/clitest"
)

// An interrupt leaves a command that waits for its user. Nothing is sent, and the terminal shows again
// what is typed.
func TestAnInterruptLeavesAQuestion(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	for _, row := range []struct{ args, asks, says string }{
		{"approvals|approve|" + firstID, "approve this? [y/N] ", "interrupted: nothing was sent"},
		{"approvals|edit|" + firstID + `|--args|{"amount":4}`, "send this? [y/N] ", "interrupted: nothing was sent"},
		{"login", "E-mail: ", "interrupted"},
		{"login|--email|kim@example.com", "Password: ", "interrupted"},
		{"agents|create|--name|x|--manifest|-", "", "interrupted"},
		{"skills|record|https://portal.example.com/|--name|Claim|--own", "press Enter here", "interrupted"},
	} {
		if strings.HasPrefix(row.args, "skills|") {
			newFakeSkills(t)
		}
		started := make(chan func(), 1)
		var terminal *os.File
		tt := clitest.AtTerminal(t, func(ctx context.Context, in *os.File, out, errs *clitest.Output) int {
			ctx, interrupt := context.WithCancel(ctx)
			terminal = in
			started <- interrupt
			return execute(ctx, strings.Split(row.args, "|"), in, out, errs)
		})
		interrupt := <-started
		eventually(t, within(t, time.Minute), row.args, func() bool { return strings.Contains(tt.Errs.String(), row.asks) })
		if row.asks == "Password: " {
			eventually(t, within(t, time.Minute), "the password is hidden", func() bool { return !shows(t, terminal) })
		}
		interrupt()
		tt.Leaves(1)
		if !strings.Contains(tt.Errs.String(), row.says) {
			t.Errorf("%s: %q", row.args, tt.Errs.String())
		}
		if !shows(t, terminal) {
			t.Errorf("%s: the terminal does not show what is typed", row.args)
		}
		for _, line := range f.took() {
			if strings.HasPrefix(line, "POST ") {
				t.Errorf("%s: asked %s", row.args, line)
			}
		}
	}
}

// shows reports whether a terminal shows what is typed.
func shows(t *testing.T, terminal *os.File) bool {
	t.Helper()
	is, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return is.Lflag&unix.ECHO != 0
}

// What cannot be undone is shown and asked about at a terminal; a script is not asked.
func TestWhatCannotBeUndoneIsAskedAbout(t *testing.T) {
	const thing = "0193f111-0000-7000-8000-0000000e5e01"
	answers := map[string]any{}
	paths := map[string]string{"kb|rm": "knowledge-bases", "end-users|rm": "end-users", "skills|rm": "browser-skills", "embed-keys|revoke": "embed-keys", "embed-keys|rotate": "embed-keys",
		"webhooks|rm": "webhooks", "webhooks|rotate": "webhooks", "triggers|rm": "triggers", "triggers|rotate": "triggers"}
	for _, path := range paths {
		at := "/v1/" + path + "/" + thing
		answers["GET "+at], answers["DELETE "+at] = object{"id": thing, "name": "Kim\x1b"}, object{}
		answers["POST "+at+"/rotate"], answers["POST "+at+"/rotate-secret"] = object{"id": thing}, object{"id": thing}
	}
	answers["GET /v1/browser-skills/"+thing] = object{"skill": object{"id": thing, "name": "Kim\x1b"}}
	took := recorded(t, answers)
	for args := range paths {
		words := append(strings.Split(args, "|"), thing)
		for answer, code := range map[string]int{"n\n": 1, "y\n": 0} {
			tt := atTerminal(t, words...)
			tt.Types(answer)
			tt.Leaves(code)
			asked := took()
			if said := tt.Errs.String(); !strings.Contains(said, `: 000e5e01  Kim\u001b. Go on? [y/N] `) || len(asked) != 2-code || !strings.HasPrefix(asked[0], "GET ") {
				t.Errorf("%s, %q: asked %q, said %q", args, answer, asked, said)
			}
		}
		tt := atTerminal(t, append(words, "--yes")...)
		tt.Leaves(0)
		_, _, code := svc(t, strings.NewReader(""), words...)
		if asked := took(); code != 0 || len(asked) != 2 || strings.HasPrefix(asked[0], "GET ") || asked[0] != asked[1] || strings.Contains(tt.Errs.String(), "Go on") {
			t.Errorf("%s: exit %d, asked %q", args, code, asked)
		}
	}
}

// An interrupt ends what goes on without an end, and says how to go on with the rest.
func TestAnInterruptWhileFollowing(t *testing.T) {
	for _, args := range []string{"runs|watch|" + runID, "chat|" + agentID} {
		f := newFakeAPI(t) // its own: the stream that is left may take a frame of the next
		ctx, interrupt := context.WithCancel(within(t, time.Minute))
		out, errs, ended := &clitest.Output{}, &clitest.Output{}, make(chan int, 1)
		go func() { ended <- execute(ctx, strings.Split(args, "|"), strings.NewReader("hello\n"), out, errs) }()
		f.send(t, delta("Hello"))
		eventually(t, ctx, args, func() bool { return strings.Contains(out.String(), "Hello") })
		interrupt()
		if code := <-ended; code != 1 || errs.String() != "svc: interrupted; the run goes on: svc runs watch 000000c1\n" {
			t.Errorf("%s: exit %d, %q", args, code, errs.String())
		}
	}
	c, _ := streamOf(t, func(w http.ResponseWriter, r *http.Request) {
		saying(fed)(w, r)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	t.Setenv("SVC_URL", c.Base)
	ctx, interrupt := context.WithCancel(within(t, time.Minute))
	out, errs, ended := &clitest.Output{}, &clitest.Output{}, make(chan int, 1)
	go func() { ended <- execute(ctx, []string{"tail"}, nil, out, errs) }()
	eventually(t, ctx, "tail", func() bool { return strings.Contains(out.String(), "connected") })
	interrupt()
	if code := <-ended; code != 0 || errs.String() != "" {
		t.Errorf("tail: exit %d, %q", code, errs.String())
	}
}

// With --json a failed run has its own code, and a chat names its thread.
func TestJSONOfRuns(t *testing.T) {
	f := newFakeAPI(t)
	for args, says := range map[string]string{"runs|watch|" + runID + "|--json": "", "chat|" + agentID + "|--json": `{"thread_id":"` + threadID + `","type":"thread"}` + "\n"} {
		type end struct {
			out, errs string
			code      int
		}
		ended := make(chan end)
		go func() {
			out, errs, code := svc(t, strings.NewReader("hello\n"), strings.Split(args, "|")...)
			ended <- end{out, errs, code}
		}()
		f.send(t, `{"type":"run.failed","code":"MODEL_ERROR","message":"no"}`)
		if e := <-ended; e.code != 1 || !strings.HasPrefix(e.errs, `{"code":"MODEL_ERROR","detail":"the run failed: MODEL_ERROR: no"`) || !strings.HasPrefix(e.out, says) {
			t.Errorf("%s: exit %d, %q %q", args, e.code, e.out, e.errs)
		}
	}
	if _, errs, code := svc(t, strings.NewReader("{}"), "embed-keys", "create", agentID, "--name", "x", "--origin", "*", "--theme", "-", "--config", "-"); code != 2 || !strings.Contains(errs, "cannot both be the input") {
		t.Errorf("two inputs: exit %d, %s", code, errs)
	}
}

// Progress stays on one line, however narrow the terminal is.
func TestProgressStaysOnItsLine(t *testing.T) {
	screen, terminal := clitest.OpenScreen(t, 20, 5)
	p := &progress{w: terminal}
	for _, line := range []string{strings.Repeat("ö", 40), "short", strings.Repeat("ö", 19), "end"} {
		p.last = time.Time{}
		p.show("%s", line)
	}
	screen.Shows(t, "end")
	if got := screen.Text(); got != "end\n" {
		t.Errorf("%q", got)
	}
}
