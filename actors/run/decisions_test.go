package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/journal/journaltest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

// decidings counts the commits with a final decision of an approval.
type decidings struct{ atomic.Int64 }

// watched counts the decisions sent to the writer; fail may return an error instead.
func (w *world) watched(fail func(c *journal.Commit) error) *decidings {
	d := &decidings{}
	w.writer.mu.Lock()
	defer w.writer.mu.Unlock()
	w.writer.fails = func(c *journal.Commit) error {
		if u := journaltest.Row[*engine.ApprovalUpdate](c); u == nil || !u.Status.Terminal() {
			return nil
		}
		if journaltest.Row[*engine.RunUpdate](c) != nil {
			w.t.Error("a decision shares a commit with its run")
		}
		d.Add(1)
		if fail != nil {
			return fail(c)
		}
		return nil
	}
	return d
}

// approval returns the approval of a run's step.
func (w *world) approval(r id.RunID, step int) (a id.ApprovalID) {
	w.t.Helper()
	if err := w.pool.QueryRow(context.Background(), `SELECT id FROM approvals WHERE tenant_id = $1 AND run_id = $2 AND step_idx = $3`, w.tenant, r, step).Scan(&a); err != nil {
		w.t.Fatal(err)
	}
	return a
}

func ballot(who string, action lifecycle.Action) msg.Decide {
	m := msg.Decide{Principal: who, Role: lifecycle.RoleOwner, Action: action, By: msg.By{Actor: who}}
	switch action {
	case lifecycle.ActionEdit:
		m.EditedArgs = json.RawMessage(`{ "to": "z", "token":"new" }`)
	case lifecycle.ActionReject, lifecycle.ActionRespond:
		m.Feedback = "/say As you wish."
	}
	return m
}

// votes sends a message to an approval's actor, and again if the actor moves.
func (w *world) votes(a id.ApprovalID, m any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return w.node.Ask(ctx, w.address(msg.KindApproval, a.UUID), m)
}

// looks fires the run's timer of a decided approval: by it the run learns of a decision whose node
// could not tell it.
func (w *world) looks(r id.RunID, a id.ApprovalID) {
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.TimerDue{Name: a.String()})
}

// voted calls votes, which must succeed.
func (w *world) voted(a id.ApprovalID, m any) any {
	w.t.Helper()
	got, err := w.votes(a, m)
	if err != nil {
		w.t.Fatalf("%+v: %v", m, err)
	}
	return got
}

func isCode(err error, code problem.Code) bool { return errors.Is(err, problem.New(code, "")) }

// A decision is one commit of the approval; the run is told, reads its rows and resumes.
func TestADecisionResumesTheRun(t *testing.T) {
	const frozen = `{"to":"<x&y>", "token":"k-123","idempotency_key":"KEY"}`
	const edited = `{ "to": "z", "token":"new","idempotency_key":"KEY" }`
	for _, c := range []struct {
		name   string
		before []msg.Decide
		last   any
		status string
		called string
		hears  string
	}{
		{"approve", []msg.Decide{ballot("a", lifecycle.ActionApprove)}, ballot("b", lifecycle.ActionApprove), "approved", frozen, `{"ok":true,"secret":"s-9"}`},
		{"edit", []msg.Decide{ballot("a", lifecycle.ActionApprove)}, ballot("b", lifecycle.ActionEdit), "edited", edited, `{"ok":true,"secret":"s-9"}`},
		{"approve what was edited before", []msg.Decide{ballot("a", lifecycle.ActionEdit)}, ballot("b", lifecycle.ActionApprove), "edited", edited, `{"ok":true,"secret":"s-9"}`},
		{"reject", nil, ballot("a", lifecycle.ActionReject), "rejected", "", `{"rejected":true,"feedback":"/say As you wish."}`},
		{"reject what was edited before", []msg.Decide{ballot("a", lifecycle.ActionEdit)}, ballot("b", lifecycle.ActionReject), "rejected", "", `{"rejected":true,"feedback":"/say As you wish."}`},
		{"respond", nil, ballot("a", lifecycle.ActionRespond), "responded", "", `{"responded":true}`},
		{"expire", nil, durable.TimerDue{Name: msg.TimerExpire}, "expired", "", `{"rejected":true,"feedback":"expired"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), gatedTurn)
			w.waits(r)
			a := w.approval(r, 1)
			if c.status == "expired" {
				w.exec(`UPDATE approvals SET expires_at = now()`)
			}
			d := w.watched(nil)
			for _, m := range c.before {
				w.voted(a, m)
			}
			asked := w.store.of("approval")
			last := c.last
			if m, ok := last.(msg.Decide); ok {
				m.Idempotency = &msg.Idempotency{Digest: [32]byte{1}, Status: 200}
				last = m
			}
			got := w.voted(a, last)
			w.is(c.status, `SELECT status FROM approvals WHERE id = $1`, a) // the commit is visible before the response
			if m, ok := got.(msg.Decided); ok && string(m.Status) != c.status {
				t.Errorf("replied %+v", m)
			}
			if got := w.ends(r); got != "succeeded" {
				t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			if n := d.Load(); n != 1 {
				t.Errorf("%d commits decided it", n)
			}
			if n := w.store.of("approval") - asked; n != 1 {
				t.Errorf("the approval was read %d times", n)
			}
			want := ""
			if c.called != "" {
				want = "1 gate.send " + strings.ReplaceAll(c.called, "KEY", tool.Key(r, 1))
			}
			if got := strings.Join(w.tools.called(), ";"); got != want {
				t.Errorf("called %s, want %s", got, want)
			}
			if got := w.asked()[2].Results[0].Content; got != c.hears {
				t.Errorf("the model gets %s", got)
			}
			w.is("0", `SELECT count(*)::text FROM timers`)
			w.is(fmt.Sprint(len(c.before)+1), `SELECT count(*)::text FROM audit_log WHERE target_kind = 'approval' AND target_id = $1`, a)
			if _, person := last.(msg.Decide); person {
				w.is("1", `SELECT count(*)::text FROM idempotency`)
			}
			w.is("false", `SELECT bool_or(doc LIKE '%k-123%' OR doc LIKE '%"new"%')::text FROM (SELECT row_to_json(s)::text doc FROM run_steps s UNION ALL SELECT row_to_json(a)::text FROM approvals a) x`)
			w.sameReplayed(r)
		})
	}
}

// A decision that meets another one, or another change of the run.
func TestADecisionAndAConcurrentChange(t *testing.T) {
	approve := ballot("a", lifecycle.ActionReject) // one rejection decides
	for _, c := range []struct {
		name, turn string
		play       func(w *world, r id.RunID)
		sent       int // decisions sent to the writer
		end        string
	}{
		{"another one is pending", "/call gate.one\n/call gate.two\n/say Done.", func(w *world, r id.RunID) {
			w.voted(w.approval(r, 1), approve)
			w.voted(w.approval(r, 2), approve)
		}, 2, "succeeded"},
		{"its expiry ends the run", "/call gate.cancel\n/say Done.", func(w *world, r id.RunID) {
			w.exec(`UPDATE approvals SET expires_at = now()`)
			w.voted(w.approval(r, 1), durable.TimerDue{Name: msg.TimerExpire})
		}, 1, "cancelled"},
		{"the expiry of another one ends the run", "/call gate.cancel\n/call gate.one\n/say Done.", func(w *world, r id.RunID) {
			if err := w.decides(r, 1, lifecycle.ActionExpire, "", ""); err != nil { // and the run is not told
				w.t.Fatal(err)
			}
			w.voted(w.approval(r, 2), approve)
		}, 1, "cancelled"},
		{"the approval moved on since it was read", gatedTurn, func(w *world, r id.RunID) {
			var once sync.Once
			w.between = func() {
				once.Do(func() { w.exec(`UPDATE approvals SET version = version + 1, owner_epoch = owner_epoch + 1`) })
			}
			w.voted(w.approval(r, 1), approve)
		}, 2, "succeeded"}, // one on the old row, one on the new
		{"the run moved on since it was read", gatedTurn, func(w *world, r id.RunID) {
			var once sync.Once
			w.between = func() { once.Do(func() { w.exec(`UPDATE runs SET version = version + 1`) }) }
			w.voted(w.approval(r, 1), approve)
		}, 1, "succeeded"},
		{"it was decided since it was read", gatedTurn, func(w *world, r id.RunID) {
			var once sync.Once
			w.between = func() {
				once.Do(func() {
					if err := w.decides(r, 1, lifecycle.ActionReject, "first", ""); err != nil {
						w.t.Error(err)
					}
				})
			}
			if got, err := w.votes(w.approval(r, 1), approve); !isCode(err, problem.CodeAlreadyDecided) {
				w.t.Errorf("%v, %v", got, err)
			}
			w.is("first", `SELECT feedback FROM approvals WHERE run_id = $1`, r)
			w.node.Tell(w.address(msg.KindRun, r.UUID), msg.ApprovalsDecided{})
		}, 1, "succeeded"},
		{"the run was cancelled since it was read", gatedTurn, func(w *world, r id.RunID) {
			var once sync.Once
			w.between = func() { once.Do(func() { w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{}) }) }
			if got, err := w.votes(w.approval(r, 1), approve); !isCode(err, problem.CodeAlreadyDecided) {
				w.t.Errorf("%v, %v", got, err)
			}
			w.is("cancelled", `SELECT status FROM approvals WHERE run_id = $1`, r)
		}, 1, "cancelled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools)
			r := w.post(w.newThread(), c.turn)
			w.waits(r)
			d := w.watched(nil)
			c.play(w, r)
			if got := w.ends(r); got != c.end {
				t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
			}
			if n := d.Load(); n != int64(c.sent) {
				t.Errorf("%d decisions were sent, want %d", n, c.sent)
			}
			w.is("0", `SELECT count(*)::text FROM approvals WHERE run_id = $1 AND status = 'pending'`, r)
			testkit.Eventually(w.t, "its timers are done", func() bool { return w.text(`SELECT count(*)::text FROM timers`) == "0" })
			if len(w.tools.called()) != 0 {
				t.Errorf("called %v", w.tools.called())
			}
			w.sameReplayed(r)
		})
	}
}

// A decision whose text cannot be stored is an error for its caller and leaves the run alone.
func TestARefusedDecisionLeavesTheRun(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	r := w.post(w.newThread(), gatedTurn)
	w.waits(r)
	a := w.approval(r, 1)
	before := w.text(`SELECT concat(r, a) FROM runs r JOIN approvals a ON a.run_id = r.id WHERE r.id = $1`, r)
	m := ballot("a", lifecycle.ActionReject)
	m.Feedback = "\x00"
	d := w.watched(nil)
	if got, err := w.votes(a, m); !isCode(err, problem.CodeInternal) {
		t.Errorf("%v, %v", got, err)
	}
	if n := d.Load(); n != 1 {
		t.Errorf("%d decisions were sent", n)
	}
	w.is(before, `SELECT concat(r, a) FROM runs r JOIN approvals a ON a.run_id = r.id WHERE r.id = $1`, r)
	w.voted(a, ballot("a", lifecycle.ActionRespond))
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.sameReplayed(r)
}

// A decision under a used Idempotency-Key is not taken.
func TestAUsedKeyLeavesTheRun(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	first, second := w.post(w.newThread(), gatedTurn), w.post(w.newThread(), gatedTurn)
	w.waits(first)
	w.waits(second)
	m := ballot("a", lifecycle.ActionReject)
	m.Idempotency = &msg.Idempotency{Digest: [32]byte{7}, Status: 200}
	w.voted(w.approval(first, 1), m)
	before := w.text(`SELECT concat(r, a) FROM runs r JOIN approvals a ON a.run_id = r.id WHERE r.id = $1`, second)
	if got, err := w.votes(w.approval(second, 1), m); !errors.Is(err, journal.ErrReplay) {
		t.Errorf("%v, %v", got, err)
	}
	w.is(before, `SELECT concat(r, a) FROM runs r JOIN approvals a ON a.run_id = r.id WHERE r.id = $1`, second)
	w.voted(w.approval(second, 1), ballot("a", lifecycle.ActionReject))
	for _, r := range []id.RunID{first, second} {
		if got := w.ends(r); got != "succeeded" {
			t.Error(got)
		}
	}
}

// If the outcome of a decision's commit is unknown, a repeat learns it from the rows.
func TestADecisionOfUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		name    string
		written bool
		err     error
	}{
		{"written, and the answer was lost", true, journal.ErrUnsettled},
		{"not written, and the answer was lost", false, journal.ErrUnsettled},
		{"no storage", false, journal.ErrUnavailable},
		{"fenced", false, journal.ErrFenced},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, toolAgent, withTools, withEndpoint)
			r := w.post(w.newThread(), gatedTurn)
			w.waits(r)
			a := w.approval(r, 1)
			var once sync.Once
			d := w.watched(func(rows *journal.Commit) (err error) {
				once.Do(func() {
					if c.written {
						if err := w.writer.Writer.Do(context.Background(), rows); err != nil {
							t.Error(err)
						}
					}
					err = c.err
				})
				return err
			})
			if got, err := w.votes(a, ballot("a", lifecycle.ActionReject)); !isCode(err, problem.CodeUnavailable) {
				t.Fatalf("%v, %v", got, err)
			}
			if n := d.Load(); n != 1 {
				t.Errorf("%d decisions were sent", n)
			}
			got, err := w.votes(a, ballot("a", lifecycle.ActionReject))
			if c.written != isCode(err, problem.CodeAlreadyDecided) || !c.written && got != any(msg.Decided{Status: lifecycle.ApprovalRejected}) {
				t.Errorf("asked again: %v, %v", got, err)
			}
			w.looks(r, a)
			if got := w.ends(r); got != "succeeded" {
				t.Fatal(got)
			}
			w.is("rejected 2", `SELECT concat_ws(' ', status, version) FROM approvals WHERE id = $1`, a)
			w.is("1", `SELECT count(*)::text FROM audit_log WHERE target_id = $1`, a)
			w.reportedOnce()
			if !c.written { // if written, Live.Abandon makes readers read the facts
				w.sameReplayed(r)
			}
		})
	}
}

// Two approvals of one run decided at the same moment: each has one outcome, and the run resumes
// once.
func TestTwoApprovalsOfARunAtOnce(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, withEndpoint)
	seen := w.watched(nil)
	const rounds = 24
	for round := range rounds {
		r := w.post(w.newThread(), "/call gate.one\n/call gate.two\n/say Done.")
		w.waits(r)
		actions := map[id.ApprovalID][]msg.Decide{}
		for step := 1; step <= 2; step++ {
			actions[w.approval(r, step)] = []msg.Decide{ballot("a", lifecycle.ActionApprove), ballot("b", lifecycle.ActionApprove)}
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		first := make(chan struct{}, 2)
		first <- struct{}{}
		for a, ms := range actions {
			wg.Go(func() {
				<-begin
				if round%3 == 0 { // one after the other
					<-first
					defer func() { first <- struct{}{} }()
				}
				for _, m := range ms {
					if got, err := w.votes(a, m); err != nil {
						t.Errorf("%v, %v", got, err)
					}
				}
			})
		}
		close(begin)
		wg.Wait()
		if got := w.ends(r); got != "succeeded" {
			t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
		}
		w.is("1 succeeded,2 succeeded", `SELECT string_agg(concat_ws(' ', idx, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1 AND kind = 'tool'`, r)
		w.is("2", `SELECT count(*)::text FROM run_marks WHERE run_id = $1 AND type = 'run.resumed'`, r)
		w.sameReplayed(r)
	}
	if n := len(w.tools.called()); n != 2*rounds {
		t.Errorf("%d calls in %d rounds", n, rounds)
	}
	testkit.Eventually(w.t, "its timers are done", func() bool { return w.text(`SELECT count(*)::text FROM timers`) == "0" })
	w.reportedOnce()
	if n := seen.Load(); n < 2*rounds {
		t.Errorf("%d decisions in %d rounds", n, rounds)
	}
}

// Fifty decisions, a cancel and an expiry at the same moment: the approval, the run and the tool
// agree on one outcome.
func TestFiftyDecisionsACancelAndAnExpiry(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, withEndpoint)
	ends := map[string]int{}
	for round := range 24 {
		w.tools.mu.Lock()
		w.tools.calls = nil
		w.tools.mu.Unlock()
		r := w.post(w.newThread(), gatedTurn)
		w.waits(r)
		a := w.approval(r, 1)
		w.exec(`UPDATE approvals SET required_approvals = 1 WHERE id = $1`, a)
		others := []func(){
			func() { w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{}) },
			func() {
				w.exec(`UPDATE approvals SET expires_at = now() WHERE id = $1`, a)
				w.voted(a, durable.TimerDue{Name: msg.TimerExpire})
			},
		}
		actions := []lifecycle.Action{lifecycle.ActionApprove, lifecycle.ActionEdit, lifecycle.ActionReject, lifecycle.ActionRespond}
		var mu sync.Mutex
		var counted []msg.Decided
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 50 {
			wg.Go(func() {
				<-begin
				got, err := w.votes(a, ballot(fmt.Sprint("user:", i), actions[(i+round)%4]))
				if err != nil {
					if !isCode(err, problem.CodeAlreadyDecided) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				counted = append(counted, got.(msg.Decided))
				mu.Unlock()
			})
		}
		for _, f := range others[:round%3] {
			wg.Go(func() { <-begin; f() })
		}
		close(begin)
		wg.Wait()
		run := w.ends(r)
		status := w.text(`SELECT status FROM approvals WHERE id = $1`, a)
		ends[status]++
		switch status {
		case "cancelled", "expired":
			if len(counted) != 0 {
				t.Errorf("%s, and the responses are %v", status, counted)
			}
		default:
			if len(counted) != 1 || string(counted[0].Status) != status {
				t.Errorf("%s, and the responses are %v", status, counted)
			}
		}
		calls := len(w.tools.called())
		may := status == "approved" || status == "edited"
		if calls > 1 || calls == 1 && !may || calls == 0 && may && run == "succeeded" {
			t.Errorf("%s, the run %s: %d calls", status, run, calls)
		}
		w.is("true", `SELECT ((status = 'cancelled') = (0 = (SELECT count(*) FROM audit_log WHERE target_id = $1)))::text FROM approvals WHERE id = $1`, a)
		w.sameReplayed(r)
	}
	w.reportedOnce()
	t.Log(ends)
}

// A timer tells the run of a decision that was committed while its node stopped.
func TestATimerTellsTheRunOfADecision(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, withEndpoint)
	r := w.post(w.newThread(), gatedTurn)
	w.waits(r)
	a := w.approval(r, 1)
	d := w.watched(nil)
	stopped := make(chan error, 1)
	w.between = func() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			stopped <- w.node.Stop(ctx)
		}()
		testkit.Eventually(w.t, "the node takes no messages any more", func() bool {
			_, err := w.node.Ask(context.Background(), w.address(msg.KindApproval, id.NewAnywhere()), msg.Decide{})
			return isCode(err, problem.CodeUnavailable)
		})
	}
	w.voted(a, ballot("a", lifecycle.ActionReject))
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if n := d.Load(); n != 1 {
		t.Errorf("%d decisions were sent", n)
	}
	w.is("rejected waiting_approval 1", `SELECT concat_ws(' ', a.status, r.status, (SELECT count(*) FROM timers)) FROM approvals a JOIN runs r ON r.id = a.run_id WHERE a.id = $1`, a)
	w.between = nil
	w.start()
	w.looks(r, a)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.reportedOnce()
}
