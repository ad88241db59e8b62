package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func requiredFrame(id, tool string) string {
	return `{"type":"approval.required","approval_id":"` + id + `","tool":"` + tool + `","expires_at":"2030-01-02T03:04:05Z"}`
}

const (
	waitingFrame   = `{"type":"run.waiting","status":"waiting_approval"}`
	completedFrame = `{"type":"run.completed","status":"succeeded","output":{"text":"x"},"tokens_in":3,"tokens_out":4,"cost_usd":0.5}`
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

// terminal is a person at a terminal.
type terminal struct {
	t        *testing.T
	keyboard *os.File
	in       *os.File
	out      logText
	errs     logText
	ended    chan int
	read     int // of out
}

// atTerminal runs a command whose input is a terminal.
func atTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tt := &terminal{t: t, keyboard: keyboard, in: in, ended: make(chan int, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	go func() { tt.ended <- execute(ctx, args, in, &tt.out, &tt.errs) }()
	t.Cleanup(func() {
		cancel()
		keyboard.Close() // ends a read that is under way
		in.Close()
	})
	return tt
}

func (tt *terminal) types(text string) {
	tt.t.Helper()
	if _, err := tt.keyboard.WriteString(text); err != nil {
		tt.t.Fatal(err)
	}
}

// sees waits until the output goes on with something that ends in text.
func (tt *terminal) sees(text string) string {
	tt.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(30 * time.Second)
	for range tick.C {
		all := tt.out.String()
		if i := strings.Index(all[tt.read:], text); i >= 0 {
			end := tt.read + i + len(text)
			seen := all[tt.read:end]
			tt.read = end
			return seen
		}
		if time.Now().After(deadline) {
			break
		}
	}
	tt.t.Fatalf("no %q in %q (errors %q)", text, tt.out.String()[tt.read:], tt.errs.String())
	return ""
}

func (tt *terminal) leaves(code int) {
	tt.t.Helper()
	select {
	case got := <-tt.ended:
		if got != code {
			tt.t.Errorf("exit code %d, want %d: %s", got, code, tt.errs.String())
		}
	case <-time.After(30 * time.Second):
		tt.t.Fatalf("it has not ended: %q", tt.out.String())
	}
}

// waiting is a chat on a terminal whose first run waits for approvals.
func (f *fakeAPI) waiting(t *testing.T, ids ...string) *terminal {
	t.Helper()
	tt := atTerminal(t, "chat", "helper")
	tt.sees("> ")
	tt.types("do it\n")
	f.send(t, delta("I will."))
	for _, id := range ids {
		f.send(t, requiredFrame(id, "crm.refund"))
	}
	f.send(t, waitingFrame)
	f.took()
	return tt
}

// ends lets the run end and leaves the talk.
func (f *fakeAPI) ends(t *testing.T, tt *terminal) {
	t.Helper()
	f.send(t, completedFrame)
	tt.sees("0.5000 USD]\n> ")
	tt.types("\n")
	tt.leaves(0)
}

func (f *fakeAPI) wants(t *testing.T, asked ...string) {
	t.Helper()
	if got := f.took(); !slices.Equal(got, asked) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(asked, "\n"))
	}
}

const choice = "[a]pprove [r]eject [e]dit re[s]pond [w]ait: "

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
` + choice
	if got := tt.sees(choice); got != want {
		t.Errorf("seen\n%s\nwant\n%s", got, want)
	}
	tt.types("?\n")
	tt.sees(choice)
	tt.types("a\n")
	tt.sees("[approve: approved]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"approve"}`)
	f.send(t, resumed(firstID, "approve"), delta("Paid."))
	tt.sees("[approval " + firstID + ": approve]\nPaid.")
	f.ends(t, tt)
}

func TestChatDecidesSeveral(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	tt := f.waiting(t, firstID, secondID)
	tt.sees(choice)
	tt.types("r\n")
	tt.sees("why (may be empty): ")
	tt.types("too much\n")
	tt.sees("[reject: rejected]\n")
	tt.sees(`"amount": 6`)
	tt.sees(choice)
	tt.types("edit\n")
	tt.sees("(empty: back): ")
	tt.types("\n")
	tt.sees(choice)
	tt.types("e\n")
	tt.sees("(empty: back): ")
	tt.types("amount 7\n")
	tt.sees("[the arguments must be a JSON object]\n")
	tt.sees("(empty: back): ")
	tt.types("{\"amount\":8}\n")
	tt.sees("  ~ amount: 6 -> 8\nsend this? [y/N] ")
	tt.types("n\n")
	tt.sees(choice)
	tt.types("e\n")
	tt.sees("(empty: back): ")
	tt.types("{\"amount\":7}\n")
	tt.sees("send this? [y/N] ")
	tt.types("y\n")
	tt.sees("[edit: edited]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"reject","feedback":"too much"}`,
		"GET /v1/approvals/"+secondID, "POST /v1/approvals/"+secondID+`/decision {"action":"edit","edited_args":{"amount":7}}`)
	f.send(t, resumed(firstID, "reject"), resumed(secondID, "edit"))
	f.ends(t, tt)
}

func TestChatResponds(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	tt := f.waiting(t, firstID)
	tt.sees(choice)
	tt.types("s\n")
	tt.sees("(empty: back): ")
	tt.types("\n")
	tt.sees(choice)
	tt.types("respond\n")
	tt.sees("(empty: back): ")
	tt.types("ask the customer first\n")
	tt.sees("[respond: responded]\n")
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
	tt.sees(choice)
	f.send(t, resumed(firstID, "reject"))
	tt.sees("\n[approval " + firstID + ": reject]\n")
	tt.types("a\n")
	tt.sees("[nothing was asked any more: the line was not used]\n")
	f.send(t, delta("As you like."), completedFrame)
	tt.sees("As you like.\n[3 tokens in, 4 out, 0.5000 USD]\n> ")
	f.wants(t, "GET /v1/approvals/"+firstID)

	// The same, with nothing typed: the next line is a message.
	tt.types("again\n")
	f.send(t, requiredFrame(firstID, "crm.refund"), waitingFrame)
	tt.sees(choice)
	f.send(t, `{"type":"run.failed","code":"CANCELLED","message":"The run was cancelled."}`)
	tt.sees("\n> ")
	f.took()
	tt.types("once more\n")
	f.ends(t, tt)
	f.wants(t, "POST /v1/threads/"+threadID+`/messages {"content":"once more"}`)
	if !strings.Contains(tt.errs.String(), "CANCELLED") {
		t.Errorf("errors %q", tt.errs.String())
	}
}

func TestChatLeavesADecisionToOthers(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	elsewhere := func(id string) string { return "[decide it elsewhere: svc approvals approve " + id + "]\n" }

	t.Run("wait", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.sees(choice)
		tt.types("w\n")
		tt.sees(elsewhere(firstID))
		tt.sees(choice)
		tt.types("a\n")
		tt.sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"))
		f.ends(t, tt)
	})
	t.Run("the end of the input", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.sees(choice)
		tt.types("\x04")
		tt.sees(elsewhere(firstID) + elsewhere(secondID))
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"), requiredFrame(firstID, "crm.refund"), waitingFrame)
		tt.sees(howToApprove(firstID) + "]\n[waiting for a decision]\n")
		f.ends(t, tt)
	})
	t.Run("nobody here may read it", func(t *testing.T) {
		f.refuses("GET", "/v1/approvals/"+firstID, "FORBIDDEN", "It is assigned to owner.", 403)
		defer f.refuses("GET", "/v1/approvals/"+firstID, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.sees("[FORBIDDEN: It is assigned to owner.]\n" + elsewhere(firstID))
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("it was decided a moment ago", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "ALREADY_DECIDED", "It is decided.", 409)
		defer f.refuses("POST", path, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.sees(choice)
		tt.types("a\n")
		tt.sees("[ALREADY_DECIDED: It is decided.]\n")
		f.send(t, resumed(firstID, "reject"))
		if seen := tt.sees("reject]\n"); strings.Contains(seen, "elsewhere") {
			t.Errorf("seen %q", seen)
		}
		f.ends(t, tt)
	})
	t.Run("arguments that do not fit are asked for again", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "INVALID_ARGS", "amount: must be a number", 422)
		tt := f.waiting(t, firstID)
		tt.sees(choice)
		tt.types("e\n")
		tt.sees("back): ")
		tt.types("{\"amount\":\"x\"}\n")
		tt.sees("[y/N] ")
		tt.types("yes\n")
		tt.sees("[INVALID_ARGS: amount: must be a number]\n" + choice)
		f.refuses("POST", path, "", "", 0)
		tt.types("a\n")
		tt.sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("decided before it could be asked", func(t *testing.T) {
		done := f.pending(firstID, "crm.refund", `{"amount":5}`)
		done["status"] = "approved"
		tt := f.waiting(t, firstID)
		tt.sees("[approval " + firstID + ": approved]\n")
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
		if code != 0 || !strings.Contains(out.String(), want) || strings.Contains(out.String(), choice) || errs.String() != "" {
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
		tt.types(row.answer)
		tt.leaves(row.code)
		if got := tt.errs.String(); !strings.HasPrefix(got, "00000001  crm.refund, high risk") || !strings.Contains(got, "\n    ~ amount: 5 -> 7\nsend this? [y/N] ") {
			t.Errorf("%q: %q", row.answer, tt.errs.String())
		}
		if sent := slices.ContainsFunc(f.took(), func(line string) bool { return strings.HasPrefix(line, "POST ") }); sent != row.sent {
			t.Errorf("%q: sent is %v", row.answer, sent)
		}
	}
	tt := atTerminal(t, "approvals", "edit", firstID, "--args", `{"amount":7}`, "--yes")
	tt.leaves(0)
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
		tt.types(row.answer)
		tt.leaves(row.code)
		shown := tt.errs.String()
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
