package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/cmd/svc/clitest"
)

func requiredFrame(id, tool string) string {
	return `{"type":"approval.required","approval_id":"` + id + `","tool":"` + tool + `","expires_at":"2030-01-02T03:04:05Z"}`
}

const (
	waitingFrame   = `{"type":"run.waiting","status":"waiting_approval"}`
	completedFrame = `{"type":"run.completed","status":"succeeded","output":{},"tokens_in":3,"tokens_out":4,"cost_usd":0.5}`
)

func delta(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return `{"type":"llm.delta","idx":0,"text":` + string(b) + `}`
}

func resumed(id, decision string) string {
	return `{"type":"run.resumed","approval_id":"` + id + `","decision":"` + decision + `"}`
}

// send gives the stream frames, one after the other.
func (f *fakeAPI) send(t *testing.T, frames ...string) {
	t.Helper()
	for _, data := range frames {
		select {
		case f.frames <- data:
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody reads the stream: %s", data)
		}
	}
}

func TestWatchShowsToolsAndApprovals(t *testing.T) {
	f := newFakeAPI(t)
	var out, errs bytes.Buffer
	ended := make(chan int)
	ctx := within(t, time.Minute)
	go func() { ended <- execute(ctx, []string{"runs", "watch", runID}, strings.NewReader(""), &out, &errs) }()
	f.send(t, `{"type":"run.started","run_id":"r","agent_id":"a","status":"running"}`, `{"type":"step.started","idx":0,"kind":"llm","name":"m"}`,
		delta("I look it up"), delta(", \x1b[2J\nthen pay."),
		`{"type":"tool.called","idx":1,"tool":"crm.find","args_preview":"{\"q\":\"a\u202eb\"}"}`, `{"type":"tool.result","idx":1,"ok":true,"output_preview":"{\"n\":1}"}`,
		`{"type":"tool.called","idx":2,"tool":"crm.pay","args_preview":"{}"}`, `{"type":"tool.result","idx":2,"ok":false,"output_preview":"\"no\""}`,
		requiredFrame(firstID, "crm.refund"), waitingFrame, `{"type":"heartbeat"}`, resumed(firstID, "edit"), `{"type":"handoff","from":"helper","to":"expert"}`,
		delta("Done."), completedFrame)
	want := `I look it up, \u001b[2J
then pay.
[crm.find {"q":"a\u202eb"}]
[ok {"n":1}]
[crm.pay {}]
[failed "no"]
[crm.refund needs an approval until 2030-01-02T03:04:05Z: svc approvals approve ` + firstID + `]
[waiting for a decision]
[approval ` + firstID + `: edit]
[helper hands over to expert]
Done.
[3 tokens in, 4 out, 0.5000 USD]
`
	if code := <-ended; code != 0 || out.String() != want || errs.String() != "" {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, errs.String(), out.String(), want)
	}
}

// A run may wait for days: a stream that only beats and is cut now and then is
// not lost, one that the service does not serve any more is.
func TestAWaitingStreamIsNotLost(t *testing.T) {
	f := newFakeAPI(t)
	c := &Client{Base: f.URL, Key: "svc_test", Tenant: "tenant", HTTP: &http.Client{}, patience: 50 * time.Millisecond}
	ended := make(chan error)
	follow := func() {
		ended <- c.Follow(t.Context(), runID, "", func(Frame) error { return nil })
	}
	go follow()
	for range 4 { // each time the pause before the next try is longer than patience
		f.send(t, `{"type":"heartbeat"}`, `{"type":"cut"}`)
	}
	f.send(t, completedFrame)
	if err := <-ended; err != nil {
		t.Errorf("a waiting stream: %v", err)
	}
	go follow()
	for cuts := 0; ; cuts++ {
		select {
		case f.frames <- `{"type":"cut"}`:
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "was lost") || cuts == 0 {
				t.Errorf("after %d cuts: %v", cuts, err)
			}
			return
		}
	}
}

// waiting is a chat on a terminal whose first run waits for approvals.
func (f *fakeAPI) waiting(t *testing.T, ids ...string) *clitest.Terminal {
	t.Helper()
	tt := atTerminal(t, "chat", "helper")
	tt.Sees("> ")
	tt.Types("do it\n")
	f.send(t, delta("I will."))
	for _, id := range ids {
		f.send(t, requiredFrame(id, "crm.refund"))
	}
	f.took() // before the frame that makes the chat ask for the approval
	f.send(t, waitingFrame)
	return tt
}

// ends lets the run end and leaves the talk.
func (f *fakeAPI) ends(t *testing.T, tt *clitest.Terminal) {
	t.Helper()
	f.send(t, completedFrame)
	tt.Sees("0.5000 USD]\n> ")
	tt.Types("\n")
	tt.Leaves(0)
}

func (f *fakeAPI) wants(t *testing.T, asked ...string) {
	t.Helper()
	if got := f.took(); !slices.Equal(got, asked) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(asked, "\n"))
	}
}

func TestChatApprovesInPlace(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", "{\"amount\":5,\"to\":\"a\u202eb\"}")
	tt := f.waiting(t, firstID)
	want := `I will.
[waiting for a decision]
crm.refund wants an approval, high risk, 1/2 of role admin so far, 1h30m left
    {
      "amount": 5,
      "to": "a\u202eb"
    }
  because: The customer asked for it.
  user:u1: approve, fine with me
` + clitest.Choice
	if got := tt.Sees(clitest.Choice); got != want {
		t.Errorf("seen\n%s\nwant\n%s", got, want)
	}
	tt.Types("?\n")
	tt.Sees(clitest.Choice)
	tt.Types("a\n")
	tt.Sees("[approve: approved]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"approve"}`)
	f.send(t, resumed(firstID, "approve"), delta("Paid."))
	tt.Sees("[approval " + firstID + ": approve]\nPaid.")
	f.ends(t, tt)
}

func TestChatDecidesSeveral(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	tt := f.waiting(t, firstID, secondID)
	tt.Sees(clitest.Choice)
	tt.Types("r\n")
	tt.Sees("why (may be empty): ")
	tt.Types("too much\n")
	tt.Sees("[reject: rejected]\n")
	tt.Sees(`"amount": 6`)
	tt.Sees(clitest.Choice)
	tt.Types("edit\n")
	tt.Sees("(empty: back): ")
	tt.Types("\n")
	tt.Sees(clitest.Choice)
	tt.Types("e\n")
	tt.Sees("(empty: back): ")
	tt.Types("amount 7\n")
	tt.Sees("[the arguments must be a JSON object]\n")
	tt.Sees("(empty: back): ")
	tt.Types("{\"amount\":8}\n")
	tt.Sees("  ~ amount: 6 -> 8\nsend this? [y/N] ")
	tt.Types("n\n")
	tt.Sees(clitest.Choice)
	tt.Types("e\n")
	tt.Sees("(empty: back): ")
	tt.Types("{\"amount\":7}\n")
	tt.Sees("send this? [y/N] ")
	tt.Types("y\n")
	tt.Sees("[edit: edited]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"reject","feedback":"too much"}`,
		"GET /v1/approvals/"+secondID, "POST /v1/approvals/"+secondID+`/decision {"action":"edit","edited_args":{"amount":7}}`)
	f.send(t, resumed(firstID, "reject"), resumed(secondID, "edit"))
	f.ends(t, tt)
}

func TestChatResponds(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	tt := f.waiting(t, firstID)
	tt.Sees(clitest.Choice)
	tt.Types("s\n")
	tt.Sees("(empty: back): ")
	tt.Types("\n")
	tt.Sees(clitest.Choice)
	tt.Types("respond\n")
	tt.Sees("(empty: back): ")
	tt.Types("ask the customer first\n")
	tt.Sees("[respond: responded]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"respond","feedback":"ask the customer first"}`)
	f.send(t, resumed(firstID, "respond"))
	f.ends(t, tt)
}

// A decision made elsewhere takes the question back; what is typed for it then
// is neither a decision nor a message.
func TestChatNoticesADecisionMadeElsewhere(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	tt := f.waiting(t, firstID)
	tt.Sees(clitest.Choice)
	f.send(t, resumed(firstID, "reject"))
	tt.Sees("\n[approval " + firstID + ": reject]\n")
	tt.Types("a\n")
	tt.Sees("[nothing was asked any more: the line was not used]\n")
	f.send(t, delta("As you like."), completedFrame)
	tt.Sees("As you like.\n[3 tokens in, 4 out, 0.5000 USD]\n> ")
	f.wants(t, "GET /v1/approvals/"+firstID)

	// The same, with nothing typed: the next line is a message.
	tt.Types("again\n")
	f.send(t, requiredFrame(firstID, "crm.refund"), waitingFrame)
	tt.Sees(clitest.Choice)
	f.send(t, `{"type":"run.failed","code":"CANCELLED","message":"The run was cancelled."}`)
	tt.Sees("\n> ")
	f.took()
	tt.Types("once more\n")
	f.ends(t, tt)
	f.wants(t, "POST /v1/threads/"+threadID+`/messages {"content":"once more"}`)
	if !strings.Contains(tt.Errs.String(), "CANCELLED") {
		t.Errorf("errors %q", tt.Errs.String())
	}
}

func TestChatLeavesADecisionToOthers(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	elsewhere := func(id string) string { return "[decide it elsewhere: svc approvals approve " + id + "]\n" }

	t.Run("wait", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.Sees(clitest.Choice)
		tt.Types("w\n")
		tt.Sees(elsewhere(firstID))
		tt.Sees(clitest.Choice)
		tt.Types("a\n")
		tt.Sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"))
		f.ends(t, tt)
	})
	t.Run("the end of the input", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.Sees(clitest.Choice)
		tt.Types("\x04")
		tt.Sees(elsewhere(firstID) + elsewhere(secondID))
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"), requiredFrame(firstID, "crm.refund"), waitingFrame)
		tt.Sees(howToApprove(firstID) + "]\n[waiting for a decision]\n")
		f.ends(t, tt)
	})
	t.Run("nobody here may read it", func(t *testing.T) {
		f.refuses("GET", "/v1/approvals/"+firstID, "FORBIDDEN", "It is assigned to owner.", 403)
		defer f.refuses("GET", "/v1/approvals/"+firstID, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.Sees("[FORBIDDEN: It is assigned to owner.]\n" + elsewhere(firstID))
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("it was decided a moment ago", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "ALREADY_DECIDED", "It is decided.", 409)
		defer f.refuses("POST", path, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.Sees(clitest.Choice)
		tt.Types("a\n")
		tt.Sees("[ALREADY_DECIDED: It is decided.]\n")
		f.send(t, resumed(firstID, "reject"))
		if seen := tt.Sees("reject]\n"); strings.Contains(seen, "elsewhere") {
			t.Errorf("seen %q", seen)
		}
		f.ends(t, tt)
	})
	t.Run("arguments that do not fit are asked for again", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "INVALID_ARGS", "amount: must be a number", 422)
		tt := f.waiting(t, firstID)
		tt.Sees(clitest.Choice)
		tt.Types("e\n")
		tt.Sees("back): ")
		tt.Types("{\"amount\":\"x\"}\n")
		tt.Sees("[y/N] ")
		tt.Types("yes\n")
		tt.Sees("[INVALID_ARGS: amount: must be a number]\n" + clitest.Choice)
		f.refuses("POST", path, "", "", 0)
		tt.Types("a\n")
		tt.Sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("decided before it could be asked", func(t *testing.T) {
		done := f.pending(firstID, "crm.refund", `{"amount":5}`)
		done["status"] = "approved"
		tt := f.waiting(t, firstID)
		tt.Sees("[approval " + firstID + ": approved]\n")
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
}

// Without a terminal nothing is asked: the line to paste is printed, and the
// stream is followed on.
func TestChatInAPipe(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	for _, asJSON := range []bool{false, true} {
		var out, errs bytes.Buffer
		ended := make(chan int)
		args := []string{"chat", "helper"}
		if asJSON {
			args = append(args, "--json")
		}
		ctx := within(t, time.Minute)
		go func() { ended <- execute(ctx, args, strings.NewReader("do it\na\n"), &out, &errs) }()
		f.send(t, requiredFrame(firstID, "crm.refund"), waitingFrame, resumed(firstID, "approve"), completedFrame)
		f.send(t, completedFrame) // the second line is a message
		code := <-ended
		want := "[crm.refund needs an approval until 2030-01-02T03:04:05Z: svc approvals approve " + firstID + "]\n[waiting for a decision]\n[approval " + firstID + ": approve]\n"
		if asJSON {
			want = requiredFrame(firstID, "crm.refund") + "\n" + waitingFrame + "\n"
		}
		if code != 0 || !strings.Contains(out.String(), want) || strings.Contains(out.String(), clitest.Choice) || errs.String() != "" {
			t.Errorf("code %d %s\n%s", code, errs.String(), out.String())
		}
		for _, line := range f.took() {
			if strings.Contains(line, "/v1/approvals") {
				t.Errorf("asked %s", line)
			}
		}
	}
}

func TestEditIsConfirmedOnATerminal(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5,"note":"[redacted]"}`)
	for _, row := range []struct {
		answer string
		code   int
		sent   bool
	}{{"y\n", 0, true}, {"YES\n", 0, true}, {"n\n", 1, false}, {"\n", 1, false}, {"\x04", 1, false}} {
		tt := atTerminal(t, "approvals", "edit", firstID, "--args", `{"amount":7,"note":"[redacted]"}`)
		tt.Types(row.answer)
		tt.Leaves(row.code)
		if got := tt.Errs.String(); !strings.HasPrefix(got, "00000001  crm.refund, high risk") || !strings.Contains(got, "\n    ~ amount: 5 -> 7\nsend this? [y/N] ") {
			t.Errorf("%q: %q", row.answer, tt.Errs.String())
		}
		if sent := slices.ContainsFunc(f.took(), func(line string) bool { return strings.HasPrefix(line, "POST ") }); sent != row.sent {
			t.Errorf("%q: sent is %v", row.answer, sent)
		}
	}
	tt := atTerminal(t, "approvals", "edit", firstID, "--args", `{"amount":7}`, "--yes")
	tt.Leaves(0)
	if asked := f.took(); asked[len(asked)-1] != "POST /v1/approvals/"+firstID+`/decision {"action":"edit","edited_args":{"amount":7}}` {
		t.Errorf("asked %v", asked)
	}
}

// A decision shows what it is about and asks before it is sent.
func TestADecisionIsConfirmedOnATerminal(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.charge", `{"amount":9}`)
	for _, row := range []struct {
		args   []string
		answer string
		code   int
		sent   bool
	}{
		{[]string{"approve", "00000001"}, "y\n", 0, true}, {[]string{"approve", "00000001"}, "n\n", 1, false}, {[]string{"reject", "00000001"}, "\n", 1, false},
		{[]string{"respond", "00000001", "--feedback", "later"}, "yes\n", 0, true}, {[]string{"approve", "00000001", "00000002"}, "\x04", 1, false},
		{[]string{"approve", "00000001", "00000002"}, "y\n", 0, true},
	} {
		f.took()
		tt := atTerminal(t, append([]string{"approvals"}, row.args...)...)
		tt.Types(row.answer)
		tt.Leaves(row.code)
		shown := tt.Errs.String()
		before, _, asked := strings.Cut(shown, "[y/N] ")
		if !asked || !strings.HasPrefix(before, "00000001  crm.refund, high risk, ") || !strings.Contains(before, "\"amount\": 5\n") || !strings.Contains(before, "asked by  the agent helper in run 000000c1") ||
			len(row.args) > 2 && row.args[0] == "approve" && !strings.Contains(before, "00000002  crm.charge, high risk, ") {
			t.Errorf("%v: %q", row.args, shown)
		}
		if sent := slices.ContainsFunc(f.took(), func(line string) bool { return strings.HasPrefix(line, "POST ") }); sent != row.sent {
			t.Errorf("%v %q: sent is %v", row.args, row.answer, sent)
		}
	}
}

// streamOf is a service whose streams answer by a list, one entry for each request; the last one
// answers all further requests.
func streamOf(t *testing.T, answers ...http.HandlerFunc) (c *Client, asked func() int) {
	t.Helper()
	var mu sync.Mutex // guards n
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		answer := answers[min(n, len(answers)-1)]
		n++
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(srv.Close)
	return &Client{Base: srv.URL, Key: "svc_test", Tenant: "tenant", HTTP: &http.Client{}}, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// saying returns an answer that is a stream of these frames, which then breaks.
func saying(frames string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, frames)
	}
}

// badGateway is what a proxy answers while the service restarts.
func badGateway(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "<html>502 Bad Gateway</html>")
}

const endOfRun = "event: run.completed\nid: 3\ndata: " + completedFrame + "\n\n"

// A proxy has no node to ask while the service restarts: streams go on afterwards.
func TestStreamsOutliveAProxyWithoutANode(t *testing.T) {
	t.Parallel()
	c, asked := streamOf(t, saying("event: llm.delta\nid: 2.5\ndata: "+delta("Hello")+"\n\n"), badGateway, func(w http.ResponseWriter, r *http.Request) {
		if at := r.Header.Get("Last-Event-ID"); at != "2.5" {
			t.Errorf("resumed after %q", at)
		}
		saying(endOfRun)(w, r)
	})
	var seen []string
	if err := c.Follow(within(t, time.Minute), runID, "", func(f Frame) error { seen = append(seen, f.Type); return nil }); err != nil || asked() != 3 || !slices.Equal(seen, []string{"llm.delta", "run.completed"}) {
		t.Errorf("%v after %d requests: %v", err, asked(), seen)
	}
	c, asked = streamOf(t, badGateway, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"status":401,"code":"UNAUTHORIZED","title":"no"}`)
	})
	if err := c.tail(within(t, time.Minute), "/v1/feed", func(Frame) error { return nil }); err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED") || asked() != 2 {
		t.Errorf("%v after %d requests", err, asked())
	}
}

// A node that is paused keeps its connections open and says nothing: its stream is lost, and the call
// too.
func TestAServiceThatFallsSilentIsLost(t *testing.T) {
	t.Parallel()
	silent := func(frames string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, frames)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}
	for name, first := range map[string]http.HandlerFunc{"after a frame": silent("event: run.started\nid: 1\ndata: {\"type\":\"run.started\"}\n\n"), "before its head": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }} {
		c, asked := streamOf(t, first, saying(endOfRun))
		c.silence = 50 * time.Millisecond
		if err := c.Follow(within(t, time.Minute), runID, "", func(Frame) error { return nil }); err != nil || asked() < 2 {
			t.Errorf("%s: %v after %d requests", name, err, asked())
		}
	}
	c, _ := streamOf(t, silent(""))
	c.patience = 50 * time.Millisecond
	ctx := within(t, time.Minute)
	var out json.RawMessage
	if err := c.Call(ctx, http.MethodGet, "/v1/agents", nil, &out); err == nil || ctx.Err() != nil {
		t.Errorf("a call without an end: %v %s", err, out)
	}
	c, _ = streamOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c.patience = 50 * time.Millisecond
	if c.answers(ctx, "/healthz") || ctx.Err() != nil {
		t.Error("it is up")
	}
}

// Text of a step that was given up is marked, and the answer is shown where it is another text than was
// streamed.
func TestTheAnswerIsShown(t *testing.T) {
	t.Parallel()
	step := func(idx int, kind string) string {
		return fmt.Sprintf(`{"type":"step.started","idx":%d,"kind":%q,"name":"n"}`, idx, kind)
	}
	text := func(idx int, text string) string {
		return fmt.Sprintf(`{"type":"llm.delta","idx":%d,"text":%q}`, idx, text)
	}
	ends := func(text string) string {
		return fmt.Sprintf(`{"type":"run.completed","status":"succeeded","output":{"text":%q},"tokens_in":3,"tokens_out":4,"cost_usd":0.5}`, text)
	}
	const figures = "[3 tokens in, 4 out, 0.5000 USD]\n"
	for _, row := range []struct {
		want   string
		frames []string
	}{
		{"Ref\n[that was withdrawn; the model is asked again]\nHello\n" + figures, []string{step(0, "llm"), text(0, "Ref"), step(1, "llm"), text(1, "Hel"), text(1, "lo"), ends("Hello")}},
		{"Hello\n" + figures, []string{step(0, "llm"), step(1, "llm"), text(1, "Hello"), ends("Hello")}},
		{"I look.\n[shop.find {}]\nFound.\n" + figures, []string{step(0, "llm"), text(0, "I look."), step(1, "tool"), `{"type":"tool.called","idx":1,"tool":"shop.find","args_preview":"{}"}`, step(2, "llm"), text(2, "Found."), ends("Found.")}},
		{"4111111111111111\n[the answer is]\n[redacted]\\u001b\n" + figures, []string{step(0, "llm"), text(0, "4111111111111111"), ends("[redacted]\x1b")}},
		{"All at once.\n" + figures, []string{step(0, "llm"), ends("All at once.")}},
		{"Hello\n" + figures, []string{text(0, "Hello"), ends("Hello")}},
	} {
		var out strings.Builder
		d := &display{w: &out}
		for range 2 { // a chat shows several runs
			out.Reset()
			for _, data := range append([]string{`{"type":"run.started"}`}, row.frames...) {
				var f struct{ Type string }
				data = strings.ReplaceAll(data, `\x1b`, `\u001b`)
				if err := json.Unmarshal([]byte(data), &f); err != nil {
					t.Fatal(err)
				}
				if err := d.frame(Frame{Type: f.Type, Data: json.RawMessage(data)}); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != row.want {
				t.Errorf("shown\n%s\nwant\n%s", out.String(), row.want)
			}
		}
	}
}
