package run_test

import (
	"encoding/json"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// verdict is what the approval of a step tells its run.
func (w *world) verdict(r id.RunID, step int) msg.ApprovalsDecided {
	w.t.Helper()
	v := &msg.Verdict{}
	var (
		feedback *string
		digest   []byte
		shown    json.RawMessage
	)
	if err := w.pool.QueryRow(w.t.Context(), `SELECT id, status, decision, feedback, edited, digest, decisions -> 1 -> 'edited_args' FROM approvals WHERE run_id = $1 AND step_idx = $2`, r, step).
		Scan(&v.Approval, &v.Status, &v.Decision, &feedback, &v.Edited, &digest, &shown); err != nil {
		w.t.Fatal(err)
	}
	if feedback != nil {
		v.Feedback = *feedback
	}
	copy(v.Digest[:], digest)
	v.Shown = shown
	return msg.ApprovalsDecided{Verdict: v}
}

func (w *world) told(r id.RunID, m msg.ApprovalsDecided) {
	w.node.Tell(w.address(msg.KindRun, r.UUID), m)
}

// A run that was read while the decision was committed goes on without another
// read.
func TestADecisionIsFollowedWithoutAnotherRead(t *testing.T) {
	for _, c := range []struct {
		name, edited, feedback, step, calls string
		action                              lifecycle.Action
	}{
		{"approve", "", "", `succeeded {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, `{"to":"<x&y>", "token":"k-123","idempotency_key":"KEY"}`, lifecycle.ActionApprove},
		{"edit", `{ "to": "z", "token":"new" }`, "", `succeeded { "to": "z", "token":"[redacted]","idempotency_key":"KEY" }`, `{ "to": "z", "token":"new" }`, lifecycle.ActionEdit},
		{"reject", "", "not today", `failed {"to":"<x&y>", "token":"[redacted]","idempotency_key":"KEY"}`, "", lifecycle.ActionReject},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), gatedTurn)
			w.waits(r)
			before := w.store.of("run")
			w.ahead.Read(w.tenant, r)
			if err := w.decides(r, 1, c.action, c.feedback, c.edited); err != nil {
				t.Fatal(err)
			}
			w.told(r, w.verdict(r, 1))
			if got := w.ends(r); got != "succeeded" {
				t.Fatal(got)
			}
			if n := w.store.of("run") - before; n != 1 {
				t.Errorf("the run was read %d times", n)
			}
			key := func(s string) string {
				return strings.ReplaceAll(s, "KEY", w.text(`SELECT coalesce(substring(args::text from '"idempotency_key":"([^"]+)"'), '') FROM approvals WHERE run_id = $1`, r))
			}
			w.is(key(c.step), `SELECT concat_ws(' ', status, input::text) FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
			if got := strings.Join(w.tools.called(), ""); got != key(strings.TrimPrefix("1 gate.send "+c.calls, map[bool]string{true: "1 gate.send "}[c.calls == ""])) {
				t.Errorf("called %q", got)
			}
		})
	}
}

// What was read ahead may be old; then the rows say.
func TestWhatWasReadAheadMayBeOld(t *testing.T) {
	const two = `/call gate.send {"to":"a"}` + "\n" + `/call gate.send {"to":"b"}` + "\n/say Done."
	for name, play := range map[string]func(w *world, r id.RunID){
		"the other approval was decided since": func(w *world, r id.RunID) {
			w.ahead.Read(w.tenant, r)
			w.approve(r, 1) // told without a verdict
			w.eventually("it has looked", func() bool { return !w.node.Active(w.address(msg.KindRun, r.UUID)) })
			if err := w.decides(r, 2, lifecycle.ActionApprove, "", ""); err != nil {
				w.t.Fatal(err)
			}
			w.told(r, w.verdict(r, 2))
		},
		"the row moved on since": func(w *world, r id.RunID) {
			if err := w.decides(r, 1, lifecycle.ActionApprove, "", ""); err != nil {
				w.t.Fatal(err)
			}
			w.ahead.Read(w.tenant, r)
			if err := w.decides(r, 2, lifecycle.ActionApprove, "", ""); err != nil {
				w.t.Fatal(err)
			}
			w.eventually("the row moves on", func() bool {
				return w.text(`WITH u AS (UPDATE runs SET version = version + 1 WHERE id = $1 RETURNING 1) SELECT count(*)::text FROM u`, r) == "1"
			})
			w.told(r, w.verdict(r, 2))
		},
		"one is pending still": func(w *world, r id.RunID) {
			for _, step := range []int{1, 2} {
				w.ahead.Read(w.tenant, r)
				if err := w.decides(r, step, lifecycle.ActionApprove, "", ""); err != nil {
					w.t.Fatal(err)
				}
				w.told(r, w.verdict(r, step))
			}
		},
		"nothing was read": func(w *world, r id.RunID) {
			for _, step := range []int{2, 1} {
				if err := w.decides(r, step, lifecycle.ActionApprove, "", ""); err != nil {
					w.t.Fatal(err)
				}
				w.told(r, w.verdict(r, step))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), two)
			w.waits(r)
			play(w, r)
			if got := w.ends(r); got != "succeeded" {
				t.Fatal(got)
			}
			if got := w.tools.called(); len(got) != 2 {
				t.Errorf("called %q", got)
			}
		})
	}
	t.Run("the run was cancelled since", func(t *testing.T) {
		w := newWorld(t, toolAgent, withTools)
		r := w.post(w.newThread(), gatedTurn)
		w.waits(r)
		w.ahead.Read(w.tenant, r)
		if err := w.decides(r, 1, lifecycle.ActionApprove, "", ""); err != nil {
			t.Fatal(err)
		}
		m := w.verdict(r, 1)
		w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "user:1"}})
		w.told(r, m)
		w.eventually("it has looked", func() bool { return !w.node.Active(w.address(msg.KindRun, r.UUID)) })
		if got := w.ends(r); got != "cancelled" || len(w.tools.called()) != 0 {
			t.Errorf("%s, called %q", got, w.tools.called())
		}
	})
}
