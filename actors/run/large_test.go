package run_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"agentsvc/persistence/engine"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
	"agentsvc/schemas/tool"
)

// A run that has heard much keeps nothing of it in memory, and the model gets it all the same.
func TestALargeHistoryIsReadForEachTurn(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	large := strings.Repeat("x", 200<<10)
	w.tools.answer = func(_ context.Context, p tool.Planned) *tool.Outcome {
		return &tool.Outcome{Content: p.Tool + large, Shown: json.RawMessage(`"x"`)}
	}
	r := w.post(w.newThread(), "/call free.a {}\n/call free.b {}\n/say Done.")
	if got := w.ends(r); got != "succeeded" {
		t.Fatal(got, w.text(`SELECT error_message FROM runs WHERE id = $1`, r))
	}
	ms := w.asked()
	if len(ms) != 3 || len(ms[1].Calls) != 2 || len(ms[2].Results) != 2 || ms[2].Results[0].Content != "free.a"+large || ms[2].Results[1].Content != "free.b"+large {
		t.Errorf("the model gets %d messages", len(ms))
	}
	if n := w.store.of("sealed"); n != 2 { // once for the size, once for the values
		t.Errorf("the steps were read %d times", n)
	}
}

// A history that is over the limit in the rows, as an earlier build may have left it, is not read.
func TestAHistoryOverTheLimitIsNotRead(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	r := w.post(w.newThread(), gatedTurn)
	w.waits(r)
	w.exec(`UPDATE run_steps SET sealed = convert_to(repeat('x', 9 << 20), 'UTF8') WHERE run_id = $1 AND idx = 0`, r)
	asked := len(w.models.requests())
	w.approve(r, 1)
	if got := w.ends(r); got != "failed" || len(w.models.requests()) != asked {
		t.Errorf("%s, the model was asked %d times", got, len(w.models.requests()))
	}
	w.is("LIMIT_EXCEEDED: The run passed its limit history of 8 MiB.", `SELECT error_code || ': ' || error_message FROM runs WHERE id = $1`, r)
}

// The place of a large answer is kept until the answer is committed, or dropped with its run.
func TestTheAnswersOfCallsKeepTheirPlaces(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	var kept, given atomic.Int32
	hangs := make(chan struct{})
	w.tools.answer = func(ctx context.Context, p tool.Planned) *tool.Outcome {
		var once atomic.Bool
		tool.Kept(ctx, func() {
			if !once.CompareAndSwap(false, true) {
				t.Error("a place is given back twice")
			}
			given.Add(1)
		})
		kept.Add(1)
		if p.Tool == "free.hang" {
			close(hangs)
			<-ctx.Done()
		}
		return nil
	}
	w.writer.mu.Lock()
	w.writer.fails = func(c *journal.Commit) error {
		for _, row := range c.Rows {
			if u, ok := row.(*engine.StepUpdate); ok && u.Idx == 1 && given.Load() != 0 {
				t.Error("the place is given back before the commit")
			}
		}
		return nil
	}
	w.writer.mu.Unlock()
	if got := w.ends(w.post(w.newThread(), "/call free.a {}\n/say Done.")); got != "succeeded" || kept.Load() != 1 {
		t.Fatal(got, kept.Load())
	}
	testkit.Eventually(t, "the place is free", func() bool { return given.Load() == 1 })
	w.writer.mu.Lock()
	w.writer.fails = nil
	w.writer.mu.Unlock()
	r := w.post(w.newThread(), "/call free.hang {}\n/say Done.")
	<-hangs
	w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "apikey:x"}})
	testkit.Eventually(t, "the place of a cancelled run is free", func() bool { return given.Load() == 2 })
}

// The place of a long turn is kept until what it said is committed, or dropped with its run.
func TestLongTurnsKeepTheirPlaces(t *testing.T) {
	w := newWorld(t, toolAgent, withTools)
	var kept, given atomic.Int32
	hangs := make(chan struct{})
	long := func(hang bool) func(context.Context, *model.Request, model.Sink) (*model.Result, error) {
		return func(ctx context.Context, _ *model.Request, sink model.Sink) (*model.Result, error) {
			kept.Add(1)
			defer tool.Kept(ctx, func() { given.Add(1) })
			sink.Text("Much.")
			if hang {
				close(hangs)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &model.Result{Text: "Much.", Finish: model.FinishStop}, nil
		}
	}
	w.writer.mu.Lock()
	w.writer.fails = func(c *journal.Commit) error {
		for _, row := range c.Rows {
			if u, ok := row.(*engine.StepUpdate); ok && u.Idx == 0 && given.Load() != 0 {
				t.Error("the place is given back before the commit")
			}
		}
		return nil
	}
	w.writer.mu.Unlock()
	w.models.next(long(false))
	if got := w.ends(w.post(w.newThread(), "hi")); got != "succeeded" || kept.Load() != 1 {
		t.Fatal(got, kept.Load())
	}
	testkit.Eventually(t, "the place is free", func() bool { return given.Load() == 1 })
	w.writer.mu.Lock()
	w.writer.fails = nil
	w.writer.mu.Unlock()
	w.models.next(long(true))
	r := w.post(w.newThread(), "hi")
	<-hangs
	w.ask(w.address(msg.KindRun, r.UUID), msg.CancelRun{By: msg.By{Actor: "apikey:x"}})
	testkit.Eventually(t, "the place of a cancelled run is free", func() bool { return given.Load() == 2 })
}

// The oldest messages of a thread that do not fit into a request are left out.
func TestALargeThread(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"memory":{"max_messages":1000}}`)
	th := w.newThread()
	for seq := 1; seq <= 5; seq++ {
		w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, created_at) VALUES ($1, $2, $3, $4, 'assistant', $3::bigint ||  repeat('x', 3 << 19), now())`,
			w.tenant, th, seq, id.NewAnywhere())
	}
	w.exec(`UPDATE threads SET next_seq = 6 WHERE id = $1`, th)
	if got := w.ends(w.post(th, "hi")); got != "succeeded" {
		t.Fatal(got)
	}
	ms := w.asked()
	if len(ms) != 3 || ms[0].Text[:2] != "4x" || ms[1].Text[:2] != "5x" || ms[2].Text != "hi" || ms[2].Role != model.User {
		t.Errorf("the model gets %d messages", len(ms))
	}
}

// What messages name of their attachments is a part of their size, and a request names few of very many.
func TestAThreadOfManyAttachments(t *testing.T) {
	w := newWorld(t, `{"model":{"provider":"simulated","name":"s"},"memory":{"max_messages":1000}}`)
	for _, c := range []struct {
		what, mediaType string
		fit             int // messages of 4 MiB
	}{
		{"long media types, as an earlier build may have stored them", strings.Repeat("x", 60_000), 8},
		{"long names", "a/b", 40},
	} {
		th := w.newThread()
		list := make([]map[string]any, 8)
		for i := range list {
			list[i] = map[string]any{"id": id.NewAnywhere(), "name": strings.Repeat("\u00ad", 255), "media_type": c.mediaType, "size": 1}
		}
		for seq := 1; seq <= 40; seq++ {
			w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, attachments, created_at) VALUES ($1, $2, $3, $4, 'user', 'hi', $5, now())`,
				w.tenant, th, seq, id.NewAnywhere(), list)
		}
		w.exec(`UPDATE threads SET next_seq = 41 WHERE id = $1`, th)
		if got := w.ends(w.post(th, "hi")); got != "succeeded" {
			t.Fatal(got)
		}
		ms, bytes := w.asked(), 0
		for _, m := range ms {
			bytes += len(m.Text)
		}
		if len(ms) != c.fit+1 || bytes > 70<<10 || !strings.HasSuffix(ms[0].Text, "hi\n\n[attachments that are not shown: 8]") {
			t.Errorf("%s: the model gets %d messages of %d bytes", c.what, len(ms), bytes)
		}
	}
}
