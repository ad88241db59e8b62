package run_test

import (
	"context"
	"strings"
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
	"agentsvc/transport/model/simulated"
)

// until makes every call last until release is closed, and returns the names of calls that began.
func (b *toolbox) until(release <-chan struct{}) <-chan string {
	began := make(chan string, 200)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = func(ctx context.Context, p tool.Planned) *tool.Outcome {
		began <- p.Tool
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}
	return began
}

// finishing begins to drain the node; the channel gets the outcome.
func (w *world) finishing() <-chan error {
	w.t.Helper()
	over := make(chan error, 1)
	node := w.node
	go func() { over <- node.Finish(context.Background()) }()
	testkit.Eventually(w.t, "the node finishes", node.Finishing)
	return over
}

const stepsOf = `SELECT string_agg(concat_ws(' ', idx, kind, status), ',' ORDER BY idx) FROM run_steps WHERE run_id = $1`

func TestADrainingNodeEndsTheCallsInFlight(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	release := make(chan struct{})
	began := w.tools.until(release)
	r := w.post(w.newThread(), "/call free.a\n/call free.b\n/say More.\n/call free.c\n/say Done.")
	for range 2 {
		<-began
	}
	over := w.finishing()
	late := w.post(w.newThread(), "/say Late.") // accepted here, begun by the next process
	close(release)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	w.is("0 llm succeeded,1 tool succeeded,2 tool succeeded", stepsOf, r)
	w.is("running", `SELECT status FROM runs WHERE id = $1`, r)
	w.is("queued", `SELECT status FROM runs WHERE id = $1`, late)
	w.restart()
	for _, x := range []msg.RunEnded{{Run: r}, {Run: late}} {
		w.node.Tell(w.address(msg.KindRun, x.Run.UUID), durable.Wake{}) // the sweep finds it
	}
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	w.is("0 llm succeeded,1 tool succeeded,2 tool succeeded,3 llm succeeded,4 tool succeeded,5 llm succeeded", stepsOf, r)
	if n := len(w.tools.called()); n != 3 {
		t.Errorf("%d calls", n)
	}
	w.sameReplayed(r)
}

func TestADrainingNodeBeginsNoCallOfATurn(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	asked, release := make(chan struct{}), make(chan struct{})
	w.models.next(func(ctx context.Context, req *model.Request, sink model.Sink) (*model.Result, error) {
		close(asked)
		<-release
		return simulated.Client{}.Stream(ctx, req, sink)
	})
	r := w.post(w.newThread(), "/call free.a {\"n\":1,\"token\":\"k\"}\n/call gate.b\n/say Done.")
	<-asked
	over := w.finishing()
	close(release)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	w.is("0 llm succeeded,1 tool waiting,2 tool waiting", stepsOf, r)
	w.is("0", `SELECT count(*)::text FROM run_steps WHERE run_id = $1 AND called_seq IS NOT NULL`, r)
	if n := len(w.tools.called()); n != 0 {
		t.Fatalf("%d calls", n)
	}
	w.restart()
	w.node.Tell(w.address(msg.KindRun, r.UUID), durable.Wake{})
	w.waits(r)
	w.is("0 llm succeeded,1 tool succeeded,2 tool waiting", stepsOf, r)
	w.approve(r, 2)
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got)
	}
	if n := len(w.tools.called()); n != 2 {
		t.Errorf("%d calls", n)
	}
	w.sameReplayed(r)
}

func TestMessagesToADrainingNode(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	waiting := w.post(w.newThread(), "/call gate.a\n/say Done.")
	w.waits(waiting)
	began := w.tools.holds()
	busy := w.post(w.newThread(), "/call free.a\n/say Done.")
	<-began
	over := w.finishing()
	queued := w.one(`"/say Late."`)
	w.decided(waiting, 1, lifecycle.ActionApprove, "", "")
	for _, r := range []msg.RunEnded{{Run: busy}, {Run: queued}} {
		if got := w.ask(w.address(msg.KindRun, r.Run.UUID), msg.CancelRun{}); got != any(msg.Status{Run: r.Run, Status: lifecycle.RunCancelled}) {
			t.Errorf("replied %+v", got)
		}
	}
	if err := <-over; err != nil { // after the cancel nothing is in flight
		t.Fatal(err)
	}
	testkit.Eventually(w.t, "nothing of the waiting one is in memory", func() bool { return !w.node.Active(w.address(msg.KindRun, waiting.UUID)) })
	w.is("waiting_approval", `SELECT status FROM runs WHERE id = $1`, waiting)
	w.tools.lets()
	w.restart()
	w.node.Tell(w.address(msg.KindRun, waiting.UUID), msg.ApprovalsDecided{})
	if got := w.ends(waiting); got != "succeeded" {
		t.Fatal(got)
	}
	if n := len(w.tools.called()); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// A cancel that comes while a begun call waits for a free slot among its node's effects keeps the
// call from being sent.
func TestCancelWhileACallWaitsForItsTurn(t *testing.T) {
	w := newWorld(t, toolAgent, withTools, func(w *world) { w.effects = 1 })
	r := w.post(w.newThread(), "/call gate.send\n/say Done.")
	w.waits(r)
	release := make(chan struct{})
	began := w.tools.until(release)
	busy := w.post(w.newThread(), "/call free.a\n/say Done.")
	<-began // the only slot is taken
	w.approve(r, 1)
	testkit.Eventually(w.t, "the receipt is committed", func() bool {
		return w.text(`SELECT (called_seq IS NOT NULL)::text FROM run_steps WHERE run_id = $1 AND idx = 1`, r) == "true"
	})
	if got := w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{}); got != any(msg.Status{Run: r, Status: lifecycle.RunCancelled}) {
		t.Fatalf("replied %+v", got)
	}
	close(release)
	if got := w.ends(busy); got != "succeeded" {
		t.Fatal(got)
	}
	for _, c := range w.tools.called() {
		if c[:3] != "1 f" {
			t.Errorf("called %s", c)
		}
	}
	w.is("failed", `SELECT status FROM run_steps WHERE run_id = $1 AND idx = 1`, r)
}

// The time of a run passes while its next turn waits for one of the node's places.
func TestMaxSecondsWithoutAPlace(t *testing.T) {
	w := newWorld(t, strings.TrimSuffix(toolAgent, "}")+`,"limits":{"max_seconds":1}}`, withTools, func(w *world) { w.effects = 1 })
	began, release := make(chan struct{}), make(chan struct{})
	w.tools.mu.Lock()
	w.tools.answer = func(context.Context, tool.Planned) *tool.Outcome { close(began); <-release; return nil }
	w.tools.mu.Unlock()
	busy := w.post(w.newThread(), "/call free.a\n/say Done.")
	<-began // the only place is taken, also when the run has ended
	waiting := w.post(w.newThread(), "/say too late")
	w.ends(waiting)
	w.is("LIMIT_EXCEEDED failed", `SELECT concat_ws(' ', r.error_code, s.status) FROM runs r JOIN run_steps s ON s.run_id = r.id WHERE r.id = $1`, waiting)
	close(release)
	w.ends(busy)
}
