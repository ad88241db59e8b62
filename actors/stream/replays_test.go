package stream

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// slow is a connection whose client takes nothing before free is closed.
type slow struct {
	*conn
	begun chan struct{}
	free  chan struct{}
}

func newSlow() slow { return slow{newConn(-1), make(chan struct{}), make(chan struct{})} }

func (s slow) Backfill(fs []*event.Frame) bool {
	close(s.begun)
	<-s.free
	return s.SendAll(fs)
}

// saidLong is an ended run whose text has so many bytes.
func (w *world) saidLong(tenant id.TenantID, bytes int) key {
	k := key{tenant, id.RunID{UUID: id.NewAnywhere()}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.facts[k] = &event.Facts{Run: k.run, Status: lifecycle.RunSucceeded, Started: true, Seq: 3, Steps: []event.StepFacts{{
		Kind: lifecycle.StepLLM, Status: lifecycle.StepSucceeded, BeganSeq: 2, Output: json.RawMessage(`{"text":"` + strings.Repeat("x", bytes) + `"}`)}}}
	return k
}

// What the replays of a tenant hold for clients that do not read is bounded. Small replays, and the
// first one of another tenant, are opened whatever the others hold.
func TestReplaysOfATenantAreBounded(t *testing.T) {
	hs, w, _ := setUp(t)
	tenant, other := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	full := event.Cursor{Full: true, Since: -1}
	const size = 3 << 20
	long, short := w.saidLong(tenant, size), w.saidLong(tenant, smallReplay/2)
	var readers []*Reader
	for {
		r, err := hs.Open(t.Context(), tenant, long.run, full)
		if err != nil {
			var p *problem.Error
			if !errors.As(err, &p) || p.Code != problem.CodeRateLimited || p.RetryAfter == 0 || !strings.Contains(p.Detail, "scope: streams") {
				t.Fatalf("got %v", err)
			}
			break
		}
		defer r.Gone()
		if readers = append(readers, r); len(readers) > replaysEach/size {
			t.Fatalf("%d replays of %d bytes are open", len(readers), size)
		}
	}
	if len(readers) != replaysEach/size {
		t.Errorf("%d replays are open", len(readers))
	}
	if _, err := hs.OpenRelay(t.Context(), tenant, long.run, full); !errors.Is(err, problem.RateLimited("", 0)) {
		t.Errorf("the relay is opened: %v", err)
	}
	huge := w.saidLong(other, replaysEach+1)
	shortOfOther := w.saidLong(other, smallReplay/2)
	for _, k := range []key{short, huge, shortOfOther} { // the last beside a replay that exceeds the limit by itself
		r, err := hs.Open(t.Context(), k.tenant, k.run, full)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Gone()
	}
	c := newConn(-1)
	readers[0].Attach(c)
	if got := c.got(); len(got) != 4 || got[2].Type != event.LLMDelta || len(got[2].Text) != size {
		t.Errorf("got %d frames", len(got))
	}
	r, err := hs.Open(t.Context(), tenant, long.run, full)
	if err != nil {
		t.Fatalf("a client has read its replay: %v", err)
	}
	r.Gone()
}

// A replay counts until its client has caught up or its reader is gone; what is counted comes
// back to nothing.
func TestAReplayIsCountedUntilItIsRead(t *testing.T) {
	hs, w, _ := setUp(t)
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	full := event.Cursor{Full: true, Since: -1}
	k := w.saidLong(tenant, 1<<20)
	counted := func() int64 {
		hs.replays.mu.Lock()
		defer hs.replays.mu.Unlock()
		return hs.replays.all
	}
	r, err := hs.Open(t.Context(), tenant, k.run, full)
	if err != nil || counted() < 1<<20 {
		t.Fatalf("%v, %d bytes are counted", err, counted())
	}
	r.leave() // it never attached
	if n := counted(); n != 0 {
		t.Errorf("%d bytes are counted after its reader is gone", n)
	}
	defer open(t, hs, k, full, newConn(-1)).Gone()
	if n := counted(); n != 0 || len(hs.replays.of) != 0 {
		t.Errorf("%d bytes are counted after the client has read them", n)
	}

	// The text of an unfinished step, which is in no row yet.
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	p.publish(p.beginLLM())
	hs.Begin(p.k.tenant, p.k.run, 2, 0, true).Text(strings.Repeat("x", 1<<20))
	c := newSlow()
	if r, err = hs.Open(t.Context(), p.k.tenant, p.k.run, full); err != nil {
		t.Fatal(err)
	}
	defer r.Gone()
	var attached sync.WaitGroup
	attached.Go(func() { r.Attach(c) })
	<-c.begun
	if n := counted(); n < 1<<20 {
		t.Errorf("%d bytes of live text are counted", n)
	}
	close(c.free)
	attached.Wait()
	if n := counted(); n != 0 {
		t.Errorf("%d bytes are counted", n)
	}
}

// held is a Source whose reads wait for free.
type held struct {
	*world
	began chan id.TenantID
	free  chan struct{}
}

func (h held) Facts(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*event.Facts, error) {
	h.began <- tenant
	<-h.free
	return h.world.Facts(ctx, tenant, run, c)
}

// A tenant that opens many streams at once holds half of the reads; another tenant's stream is
// opened meanwhile.
func TestReadsOfTenantsTakeTurns(t *testing.T) {
	hs, w, _ := setUp(t)
	busy, quiet := w.saidLong(id.TenantID{UUID: id.NewAnywhere()}, 1), w.saidLong(id.TenantID{UUID: id.NewAnywhere()}, 1)
	h := held{w, make(chan id.TenantID, 64), make(chan struct{})}
	hs.source = h
	var opening sync.WaitGroup
	start := func(k key) {
		opening.Go(func() {
			r, err := hs.Open(t.Context(), k.tenant, k.run, event.Cursor{Full: true, Since: -1})
			if err != nil {
				t.Error(err)
				return
			}
			r.Gone()
		})
	}
	for range 32 {
		start(busy)
	}
	for range 8 {
		if got := <-h.began; got != busy.tenant {
			t.Fatalf("%s reads", got)
		}
	}
	start(quiet)
	if got := <-h.began; got != quiet.tenant {
		t.Errorf("the busy tenant has a ninth read while another tenant waits")
	}
	close(h.free)
	opening.Wait()
}
