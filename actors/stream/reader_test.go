package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster/clustertest"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func has(n int) func([]*event.Frame) bool {
	return func(fs []*event.Frame) bool { return len(fs) >= n }
}

func text(fs []*event.Frame, t event.Type) string {
	var b strings.Builder
	for _, f := range fs {
		if f.Type == t {
			b.WriteString(f.Text)
		}
	}
	return b.String()
}

func hubsOf(hs *Hubs) int {
	n := 0
	for i := range hs.shelves {
		hs.shelves[i].mu.Lock()
		n += len(hs.shelves[i].hubs)
		hs.shelves[i].mu.Unlock()
	}
	return n
}

func TestAForeignRunIsNotFound(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	for name, k := range map[string]key{
		"unknown run":    {p.k.tenant, id.RunID{UUID: id.NewAnywhere()}},
		"foreign tenant": {id.TenantID{UUID: id.NewAnywhere()}, p.k.run},
	} {
		if _, err := hs.Open(t.Context(), k.tenant, k.run, event.Cursor{Since: -1}); !errors.Is(err, problem.NotFound("run")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The watch may hold one for a moment.
	testkit.Eventually(t, "no hub is left", func() bool { return hubsOf(hs) == 0 })
}

func TestReadersOfARunInEachOfItsStates(t *testing.T) {
	for _, c := range []struct {
		name   string
		cursor event.Cursor
		want   string // the frames before the run goes on
	}{
		{"default", event.ReadCursor("", -1, false), "1 run.started ;2 step.started ;2.3 llm.thinking hmm;2.5 llm.delta ab;"},
		{"since names the running step: nothing older than the connection", event.ReadCursor("", 0, false), ""},
		{"full", event.ReadCursor("", -1, true), "1 run.started ;2 step.started ;2.3 llm.thinking hmm;2.5 llm.delta ab;"},
		{"Last-Event-ID inside the running step: the rest", event.ReadCursor("2.4", -1, false), "2.5 llm.delta b;"},
		{"Last-Event-ID at its very position: nothing yet", event.ReadCursor("2.5", -1, false), ""},
		{"Last-Event-ID of no frame counts as none", event.ReadCursor("77", -1, false), "1 run.started ;2 step.started ;2.3 llm.thinking hmm;2.5 llm.delta ab;"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hs, w, _ := setUp(t)
			p := newPlay(w, hs, 1)
			p.publish(p.start())
			p.publish(p.beginLLM())
			l := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
			l.Thinking("h")
			l.Thinking("mm")
			l.Text("a")
			l.Text("b")
			cn := newConn(-1)
			r := open(t, hs, p.k, c.cursor, cn)
			if got := list(cn.got()); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			n := len(cn.got())
			l.Text("c")
			if got := list(cn.got()[n:]); got != "2.6 llm.delta c;" {
				t.Errorf("then %s", got)
			}
			p.publish(p.end())
			cn.wait(t)
			r.Gone()
			if got := list(cn.got()[n:]); got != "2.6 llm.delta c;3 run.completed ;" {
				t.Errorf("then %s", got)
			}
			if n := hubsOf(hs); n != 0 {
				t.Errorf("%d hubs are left", n)
			}
		})
	}
}

func TestAReaderOfAQueuedRunWaits(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	for _, c := range []event.Cursor{event.ReadCursor("", -1, false), event.ReadCursor("", -1, true), event.ReadCursor("3", 5, false)} {
		cn := newConn(-1)
		r := open(t, hs, p.k, c, cn)
		if got := cn.got(); len(got) != 0 {
			t.Errorf("%+v: %s", c, list(got))
		}
		defer r.Gone()
		defer func() {
			cn.wait(t)
			if got := list(cn.got()); got != "1 run.started ;2 run.completed ;" {
				t.Errorf("%+v: %s", c, got)
			}
		}()
	}
	p.publish(p.start())
	p.publish(p.end())
}

func TestAReaderOfAnEndedRunIsServedAndClosed(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	p.tool()
	p.publish(p.end())
	for _, c := range []struct {
		cursor event.Cursor
		want   string
	}{
		{event.ReadCursor("", -1, false), "1 run.started ;2 step.started ;5 run.completed ;"},
		{event.ReadCursor("", 0, false), "5 run.completed ;"},
		{event.ReadCursor("2", -1, false), "3 tool.called ;4 tool.result ;5 run.completed ;"},
		{event.ReadCursor("5", -1, false), ""},
	} {
		cn := newConn(-1)
		r := open(t, hs, p.k, c.cursor, cn)
		cn.wait(t)
		r.Gone()
		if got := list(cn.got()); got != c.want || cn.wasCut() {
			t.Errorf("%+v: %s", c.cursor, got)
		}
	}
}

func TestAJoinerGetsTheTextSoFarAsOneDelta(t *testing.T) {
	for _, c := range []struct{ says, want string }{
		{"x", "2.2 llm.delta xx;"},
		{"tx", "2.2 llm.thinking tt;2.4 llm.delta xx;"},
		{"txt", "2.2 llm.thinking tt;2.4 llm.delta xx;2.6 llm.thinking tt;"},
		{"txtx", "2.2 llm.thinking tttt;2.8 llm.delta xxxx;"},
		{"t", "2.2 llm.thinking tt;"},
		{"xt", "2.2 llm.delta xx;2.4 llm.thinking tt;"},
		{"xtx", "2.2 llm.delta xxxx;2.6 llm.thinking tt;"},
		{"xtxt", "2.2 llm.delta xxxx;2.8 llm.thinking tttt;"},
	} {
		hs, w, _ := setUp(t)
		p := newPlay(w, hs, 1)
		p.publish(p.start())
		p.publish(p.beginLLM())
		l := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
		for _, k := range c.says {
			for range 2 {
				if k == 't' {
					l.Thinking("t")
				} else {
					l.Text("x")
				}
			}
		}
		cn := newConn(-1)
		r := open(t, hs, p.k, event.ReadCursor("", -1, false), cn)
		if got := list(cn.got()[2:]); got != c.want {
			t.Errorf("%s: %s, want %s", c.says, got, c.want)
		}
		r.Gone()
	}
}

func TestTextOfAnEndedStepIsDropped(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	p.publish(p.beginLLM())
	cn := newConn(-1)
	r := open(t, hs, p.k, event.ReadCursor("", -1, true), cn)
	defer r.Gone()
	old := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
	old.Text("gone")
	p.publish(p.beginLLM()) // the first step was abandoned
	old.Text("late")
	hs.Begin(p.k.tenant, p.k.run, 2, 0, true).Text("later")
	hs.Begin(p.k.tenant, p.k.run, 3, 1, true).Text("new")
	old.Text("last")
	if got, want := list(cn.got()), "1 run.started ;2 step.started ;2.4 llm.delta gone;3 step.started ;3.3 llm.delta new;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestAnOverflowingQueueLosesNothing(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	p.publish(p.beginLLM())
	l := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
	r, err := hs.Open(t.Context(), p.k.tenant, p.k.run, event.ReadCursor("", -1, true))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * maxQueue {
		l.Text("x")
	}
	cn := newConn(-1)
	r.Attach(cn)
	defer r.Gone()
	l.Text("y")
	if got := text(cn.got(), event.LLMDelta); got != strings.Repeat("x", 3*maxQueue)+"y" {
		t.Errorf("%d bytes", len(got))
	}
	increasing(t, cn.got())
	if n := len(cn.got()); n > 6 {
		t.Errorf("%d frames for the missed text", n)
	}
}

func TestAReaderSurvivesADatabaseOutage(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	cn := newConn(-1)
	r := open(t, hs, p.k, event.ReadCursor("", -1, true), cn)
	w.mu.Lock()
	w.fail = errors.New("away")
	w.mu.Unlock()
	if _, err := hs.Open(t.Context(), p.k.tenant, p.k.run, event.Cursor{Since: -1}); !errors.Is(err, problem.Unavailable("", 0)) {
		t.Errorf("open: %v", err)
	}
	p.commit(func(f *event.Facts) []*event.Frame { // never published: a gap
		f.Seq++
		f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq, Type: event.Handoff, Data: json.RawMessage(`{}`)})
		return nil
	})
	p.publish(p.beginLLM())
	w.mu.Lock()
	reads := w.reads
	w.mu.Unlock()
	testkit.Eventually(t, "it tries again", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		tried := w.reads > reads+1
		if tried {
			w.fail = nil
		}
		return tried
	})
	cn.until(t, "what was missed", has(3))
	p.publish(p.end())
	cn.wait(t)
	r.Gone()
	if got, want := list(cn.got()), "1 run.started ;2 handoff ;3 step.started ;4 run.completed ;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestAGoneReaderIsFreedAndAStoppingNodeCutsTheRest(t *testing.T) {
	w := &world{facts: map[key]*event.Facts{}}
	n := clustertest.Node()
	hs := New(Config{Node: n, Source: w, Heads: w, Log: zerolog.Nop()})
	if err := errors.Join(n.Start(t.Context()), hs.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	stays, goes := newConn(-1), newConn(-1)
	r := open(t, hs, p.k, event.Cursor{Since: -1}, stays)
	g := open(t, hs, p.k, event.Cursor{Since: -1}, goes)
	g.Gone()
	testkit.Eventually(t, "its actor leaves", func() bool { return !n.Active(g.address()) })
	p.tool()
	if len(goes.got()) != 1 || len(stays.got()) != 4 {
		t.Errorf("sent %s and %s", list(goes.got()), list(stays.got()))
	}
	unattached, err := hs.Open(t.Context(), p.k.tenant, p.k.run, event.Cursor{Since: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	stays.wait(t)
	late := newConn(-1)
	unattached.Attach(late)
	late.wait(t)
	if !stays.wasCut() || !late.wasCut() {
		t.Error("a stream is open after its node stopped")
	}
	r.Gone()
	unattached.Gone()
	if late, err := hs.Open(t.Context(), p.k.tenant, p.k.run, event.Cursor{Since: -1}); err == nil {
		late.Gone()
	}
	hs.Abandon(p.k.tenant, p.k.run)
	hs.Stop()
	if n := hubsOf(hs); n != 0 || len(hs.born) != 0 {
		t.Errorf("%d hubs and %d readers are left", n, len(hs.born))
	}
}

func TestAThousandReadersShareEachFrame(t *testing.T) {
	hs, w, _ := setUpBy(t, time.Second) // the publisher counts as silent only after five seconds
	hs.workers = 4                      // possibly more than the machine has cores
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	conns := make([]*conn, 1000)
	readers := make([]*Reader, len(conns))
	for i := range conns {
		left := -1
		if i%10 == 0 {
			left = 3
		}
		conns[i] = newConn(left)
		readers[i] = open(t, hs, p.k, event.ReadCursor("", -1, true), conns[i])
	}
	p.publish(p.beginLLM())
	l := hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
	for range 20 {
		l.Text("x")
	}
	var one *event.Frame
	for i, c := range conns {
		got := c.got()
		want := 22
		if i%10 == 0 {
			want = 3
		}
		if len(got) != want {
			t.Fatalf("reader %d has %s", i, list(got))
		}
		if one == nil {
			one = got[2]
		}
		if got[2] != one {
			t.Fatal("a frame is encoded more than once")
		}
	}
	if h := hs.hold(p.k, false); len(h.readers) != 900 {
		t.Errorf("%d readers are left", len(h.readers))
		h.release()
	} else {
		h.release()
	}
	for _, r := range readers {
		r.Gone()
	}
}

func TestFramesAreNotMadeWithoutReaders(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	made := 0
	publish := func(last int64, terminal bool) {
		hs.PublishFunc(p.k.tenant, p.k.run, last, terminal, func() []*event.Frame {
			made++
			return []*event.Frame{event.Failed(last, "x", "y")}
		})
	}
	p.start()
	publish(1, false)
	if made != 0 || hs.Watched(p.k.tenant, p.k.run) || hubsOf(hs) != 1 {
		t.Errorf("made %d", made)
	}
	cn := newConn(-1)
	r := open(t, hs, p.k, event.ReadCursor("", -1, false), cn)
	defer r.Gone()
	if !hs.Watched(p.k.tenant, p.k.run) {
		t.Error("a run with a reader is not watched")
	}
	publish(2, true)
	cn.wait(t)
	if made != 1 {
		t.Errorf("made %d", made)
	}
}

// sink is a connection that drops every frame.
type sink struct{ n int }

func (s *sink) Send(*event.Frame) bool         { s.n++; return true }
func (s *sink) SendAll(f []*event.Frame) bool  { s.n += len(f); return true }
func (s *sink) Backfill(f []*event.Frame) bool { s.n += len(f); return true }
func (s *sink) Close()                         {}
func (s *sink) Cut()                           {}
func running(w *world) key {
	k := key{id.TenantID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.facts[k] = &event.Facts{Run: k.run, Status: lifecycle.RunRunning, Started: true, Seq: 2,
		Steps: []event.StepFacts{{Kind: lifecycle.StepLLM, Status: lifecycle.StepRunning, BeganSeq: 2}}}
	return k
}

func BenchmarkTextOf1000RunsWith1Reader(b *testing.B) {
	hs, w, _ := setUp(b)
	texts := make([]interface{ Text(string) }, 1000)
	for i := range texts {
		k := running(w)
		hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
		texts[i] = hs.Begin(k.tenant, k.run, 2, 0, true)
		r := open(b, hs, k, event.Cursor{Since: -1}, newSink())
		defer r.Gone()
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		texts[i%1000].Text(" token")
		i++
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
}

func newSink() *sink { return &sink{} }

func BenchmarkTextOf1RunWith(b *testing.B) { benchmarkTextOf1Run(b, open) }

func BenchmarkTextOf1RunRelayedTo(b *testing.B) { benchmarkTextOf1Run(b, openRelay) }

func benchmarkTextOf1Run(b *testing.B, open func(testing.TB, *Hubs, key, event.Cursor, Conn) *Reader) {
	for _, readers := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(readers), func(b *testing.B) {
			hs, w, _ := setUp(b)
			k := running(w)
			hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
			l := hs.Begin(k.tenant, k.run, 2, 0, true)
			var wg sync.WaitGroup
			for range readers {
				wg.Go(func() {
					r := open(b, hs, k, event.Cursor{Since: -1}, newSink())
					b.Cleanup(r.Gone)
				})
			}
			wg.Wait()
			b.ReportAllocs()
			for b.Loop() {
				l.Text(" token")
			}
			b.ReportMetric(float64(b.N)*float64(max(readers, 1))/b.Elapsed().Seconds(), "frames/s")
		})
	}
}

// BenchmarkToolOf1RunWith publishes the three frames of a tool's step.
func BenchmarkToolOf1RunWith(b *testing.B) { benchmarkToolOf1Run(b, open) }

func BenchmarkToolOf1RunRelayedTo(b *testing.B) { benchmarkToolOf1Run(b, openRelay) }

func benchmarkToolOf1Run(b *testing.B, open func(testing.TB, *Hubs, key, event.Cursor, Conn) *Reader) {
	for _, readers := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(readers), func(b *testing.B) {
			hs, w, _ := setUp(b)
			k := running(w)
			hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
			for range readers {
				b.Cleanup(open(b, hs, k, event.Cursor{Since: -1}, newSink()).Gone)
			}
			args := json.RawMessage(`{"query":"where is my order 1234","limit":10}`)
			b.ReportAllocs()
			seq := int64(2)
			for b.Loop() {
				seq += 3
				hs.PublishFunc(k.tenant, k.run, seq, false, func() []*event.Frame {
					return []*event.Frame{event.StepBegan(seq-2, 1, lifecycle.StepTool, "a.b"), event.Called(seq-1, 1, "a.b", args), event.Resulted(seq, 1, true, args)}
				})
			}
		})
	}
}

// The terminal frame shows a reader that it missed frames before it.
func TestAReaderThatMissesTheEndIsClosed(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	cn := newConn(-1)
	r := open(t, hs, p.k, event.ReadCursor("", -1, true), cn)
	p.beginLLM() // committed, but never published
	p.publish(p.end())
	cn.wait(t)
	r.Gone()
	if got, want := list(cn.got()), "1 run.started ;2 step.started ;3 run.completed ;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}
