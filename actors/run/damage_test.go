package run_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// logged records the lines of a log.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// errors returns the lines at level error.
func (l *logged) errors() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, `"level":"error"`) {
			out = append(out, line)
		}
	}
	return out
}

// damage changes the last byte of a sealed value.
func (w *world) damage(table, column, where string, args ...any) {
	w.t.Helper()
	tag, err := w.pool.Exec(w.t.Context(), `UPDATE `+table+` SET `+column+` = set_byte(`+column+`, octet_length(`+column+`) - 1, get_byte(`+column+`, octet_length(`+column+`) - 1) # 255) WHERE `+where, args...)
	if err != nil || tag.RowsAffected() != 1 {
		w.t.Fatal(tag, err)
	}
}

func (w *world) damageStep(r id.RunID, idx int) {
	w.t.Helper()
	w.damage("run_steps", "sealed", "run_id = $1 AND idx = $2", r, idx)
}

func (w *world) wake(r id.RunID) { w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{}) }

// A run that reads a sealed value or a state that cannot be opened ends with INTERNAL: one commit,
// one event, one log line. Its thread continues with the next run.
func TestARunWhoseRowsCannotBeReadFails(t *testing.T) {
	for _, c := range []struct {
		name, input string
		hold        bool // a call is in flight when the process dies
		harm        func(w *world, r id.RunID)
	}{
		{"a call under way that cannot be repeated", "/call free.a\n/say Done.", true, func(w *world, r id.RunID) { w.damageStep(r, 1) }},
		{"a call under way that can be repeated", "/call safe.a\n/say Done.", true, func(w *world, r id.RunID) { w.damageStep(r, 1) }},
		{"one of two calls under way", "/call safe.a\n/call safe.b\n/say Done.", true, func(w *world, r id.RunID) { w.damageStep(r, 2) }},
		{"a sealed value that is gone", "/call safe.a\n/say Done.", true, func(w *world, r id.RunID) {
			w.exec("UPDATE run_steps SET sealed = NULL WHERE run_id = $1 AND idx = 1", r)
		}},
		{"the master key is another one", "/call safe.a\n/say Done.", true, func(w *world, r id.RunID) {
			w.vault = vault.New(vault.NewSecret32([32]byte{2}))
		}},
		{"the state column", "/call safe.a\n/say Done.", true, func(w *world, r id.RunID) {
			w.exec(`UPDATE runs SET state = '\xff' WHERE id = $1`, r)
		}},
		{"what the model said before", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) { w.damageStep(r, 0); w.approve(r, 1) }},
		{"an earlier result", "/call free.a\n/call gate.b\n/say Done.", false, func(w *world, r id.RunID) { w.damageStep(r, 1); w.approve(r, 2) }},
		{"a call that was approved", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) { w.damageStep(r, 1); w.approve(r, 1) }},
		{"a call that was rejected", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) {
			w.damageStep(r, 1)
			w.decided(r, 1, lifecycle.ActionReject, "no", "")
		}},
		{"a call that was responded to", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) {
			w.damageStep(r, 1)
			w.decided(r, 1, lifecycle.ActionRespond, "no", "")
		}},
		{"a call whose approval expired", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) {
			w.damageStep(r, 1)
			w.decided(r, 1, lifecycle.ActionExpire, "", "")
		}},
		{"a gated handoff", "/call builtin:handoff? {\"to\":\"b\"}\n/say Done.", false, func(w *world, r id.RunID) { w.damageStep(r, 1); w.approve(r, 1) }},
		{"edited arguments", "/call gate.a\n/say Done.", false, func(w *world, r id.RunID) {
			if err := w.decides(r, 1, lifecycle.ActionEdit, "", `{"n":1}`); err != nil {
				w.t.Fatal(err)
			}
			w.damage("approvals", "edited", "run_id = $1", r)
			w.wake(r)
		}},
		{"a decision that joins the run", "/call gate.b\n/say Done.", false, func(w *world, r id.RunID) {
			w.exec("UPDATE approvals SET required_approvals = 1 WHERE run_id = $1", r)
			w.damageStep(r, 1)
			w.voted(w.approval(r, 1), ballot("user:1", lifecycle.ActionApprove))
			w.is("approved", `SELECT status FROM approvals WHERE run_id = $1`, r)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := &logged{}
			w := newWorld(t, toolAgent, withTools, withEndpoint, func(w *world) { w.log = zerolog.New(log) })
			th := w.newThread()
			var r, next id.RunID
			if c.hold {
				began := w.tools.holds()
				r = w.post(th, c.input)
				for range strings.Count(c.input, "/call") {
					<-began
				}
				testkit.Stop(t, w.node.Stop)
				w.tools.lets()
				c.harm(w, r)
				w.start()
				next = w.post(th, "/say Next.")
				w.wake(r)
			} else {
				r = w.post(th, c.input)
				w.waits(r)
				next = w.post(th, "/say Next.")
				c.harm(w, r)
			}
			if got := w.ends(r); got != "failed" {
				t.Fatal(got)
			}
			w.is("INTERNAL", `SELECT error_code FROM runs WHERE id = $1`, r)
			w.is("0", `SELECT count(*)::text FROM run_steps WHERE run_id = $1 AND status IN ('running', 'waiting')`, r)
			w.is("0", `SELECT count(*)::text FROM approvals WHERE run_id = $1 AND status = 'pending'`, r)
			w.is("0", `SELECT count(*)::text FROM timers`)
			w.is("1", `SELECT count(*)::text FROM webhook_deliveries WHERE type = 'run.failed'`)
			if got := w.ends(next); got != "succeeded" {
				t.Errorf("the next run of the thread: %s", got)
			}
			if lines := log.errors(); len(lines) != 1 || !strings.Contains(lines[0], r.String()) {
				t.Errorf("logged %q", lines)
			}
			for _, call := range w.tools.called() {
				if !c.hold && strings.Contains(call, "gate.") && c.name != "what the model said before" && c.name != "an earlier result" {
					t.Errorf("called %s", call)
				}
			}
		})
	}
}

// A run whose rows cannot be read can be cancelled, and ends by an approval that cancels the run;
// its pending approvals are withdrawn.
func TestARunWhoseRowsCannotBeReadIsCancelled(t *testing.T) {
	for name, end := range map[string]func(w *world, r id.RunID){
		"by a person": func(w *world, r id.RunID) {
			if got := w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}}); got != any(msg.Status{Run: r, Status: lifecycle.RunCancelled}) {
				w.t.Errorf("replied %+v", got)
			}
		},
		"by an expiry": func(w *world, r id.RunID) { w.decided(r, 1, lifecycle.ActionExpire, "", "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, toolAgent, withTools, withEndpoint)
			th := w.newThread()
			r := w.post(th, "/call gate.cancel\n/call gate.climb\n/say Done.")
			w.waits(r)
			next := w.post(th, "/say Next.")
			w.damageStep(r, 1)
			w.damageStep(r, 2)
			end(w, r)
			if got := w.ends(r); got != "cancelled" {
				t.Fatal(got)
			}
			w.is("0", `SELECT count(*)::text FROM approvals WHERE run_id = $1 AND status = 'pending'`, r)
			w.is("0", `SELECT count(*)::text FROM timers`)
			w.is("high", `SELECT DISTINCT convert_from(body, 'UTF8')::json->'data'->>'risk' FROM webhook_deliveries WHERE type = 'approval.decided'`)
			if got := w.ends(next); got != "succeeded" {
				t.Errorf("the next run of the thread: %s", got)
			}
		})
	}
}

// An approval whose frozen arguments cannot be opened can be decided: its run holds them too.
func TestAnApprovalWhoseArgumentsCannotBeReadIsDecided(t *testing.T) {
	for _, action := range []lifecycle.Action{lifecycle.ActionApprove, lifecycle.ActionReject, lifecycle.ActionRespond} {
		t.Run(string(action), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), "/call gate.one\n/say Done.")
			w.waits(r)
			w.exec("UPDATE approvals SET required_approvals = 1 WHERE run_id = $1", r)
			w.damage("approvals", "frozen", "run_id = $1", r)
			if action == lifecycle.ActionApprove {
				if _, err := w.votes(w.approval(r, 1), ballot("user:1", lifecycle.ActionEdit)); err == nil {
					t.Error("arguments that cannot be read were edited")
				}
			}
			w.voted(w.approval(r, 1), ballot("user:1", action))
			if got := w.ends(r); got != "succeeded" {
				t.Error(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
		})
	}
}
