package stream

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentsvc/persistence/cache/cachetest"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func redisTown(t testing.TB, nodes int, every time.Duration) (*town, *cachetest.Server) {
	t.Helper()
	s := cachetest.New(t)
	w := newTownWith(t, nodes, every, s.URL)
	for _, h := range w.nodes {
		testkit.Eventually(t, "the feed is up", h.feed.Up)
	}
	return w, s
}

// Redis is killed, started empty, paused and resumed while runs are read on two other nodes: no
// reader misses a frame, and text is live again.
func TestRedisFailsWhileRunsAreRead(t *testing.T) {
	w, s := redisTown(t, 3, 50*time.Millisecond)
	p := w.newPlay(1)
	var conns []*conn
	var readers []*Reader
	for _, h := range w.nodes[1:] {
		cn := newConn(-1)
		conns = append(conns, cn)
		readers = append(readers, open(t, h.hs, p.k, event.ReadCursor("", -1, true), cn))
	}
	heard := func(what string) {
		t.Helper()
		all := told(p.all)
		for _, cn := range conns {
			cn.until(t, what, func(fs []*event.Frame) bool { return slices.Equal(told(fs), all) })
		}
	}
	liveOn := func(what string) {
		t.Helper()
		p.publish(p.beginLLM())
		heard(what)
		for _, h := range w.nodes[1:] {
			h.mirrored(t, p.k)
		}
		p.speak(20)
		heard(what + ": the text")
	}
	p.publish(p.start())
	liveOn("at first")
	s.Kill()
	p.tool()
	heard("without Redis")
	p.publish(p.beginLLM())
	p.speak(20)
	p.tool()
	heard("without Redis, the next")
	s.Start()
	liveOn("after Redis came back")
	s.Signal(syscall.SIGSTOP)
	p.tool()
	heard("while Redis hangs")
	s.Signal(syscall.SIGCONT)
	liveOn("after Redis went on")
	p.publish(p.end())
	for i, cn := range conns {
		cn.wait(t)
		readers[i].Gone()
		increasing(t, cn.got())
	}
	heard("the end")
	testkit.Eventually(t, "nothing stays", w.empty)
}

func TestTenThousandReadersOnAnotherNodeGetOneFeed(t *testing.T) {
	w, _ := redisTown(t, 2, time.Second)
	const count = 10_000
	k := running(w.world)
	w.place(k.run.Shard(), 0)
	hs, far := w.nodes[0].hs, w.nodes[1].hs
	hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
	l := hs.Begin(k.tenant, k.run, 2, 0, true)
	conns := make([]sink, count)
	readers := make([]*Reader, count)
	goroutines := runtime.NumGoroutine()
	for i := range readers {
		readers[i] = open(t, far, k, event.Cursor{Since: -1}, &conns[i])
	}
	slow := newConn(-1)
	r := open(t, far, k, event.Cursor{Since: -1}, slow)
	h := hs.hold(k, false)
	before := h.outlet.number
	h.release()
	for range 100 {
		l.Text("x")
	}
	slow.until(t, "the text", func(fs []*event.Frame) bool { return len(text(fs, event.LLMDelta)) == 100 })
	h = hs.hold(k, false)
	if n := h.outlet.number - before; n != 100 || len(h.outlet.watchers) != 1 {
		t.Errorf("%d messages to %d nodes", n, len(h.outlet.watchers))
	}
	h.release()
	// Readers that have just run their mailboxes keep their goroutines for a while.
	testkit.Eventually(t, "the readers have no goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	w.mu.Lock()
	w.facts[k].Seq, w.facts[k].Status, w.facts[k].Output = 3, lifecycle.RunSucceeded, json.RawMessage(`{}`)
	w.mu.Unlock()
	hs.Publish(k.tenant, k.run, event.Completed(3, json.RawMessage(`{}`), 0, 0, 0))
	slow.wait(t)
	r.Gone()
	for _, r := range readers {
		r.Gone()
	}
	testkit.Eventually(t, "nothing stays", w.empty)
	for i := range conns {
		if conns[i].n != conns[0].n || conns[i].n < 100 {
			t.Fatalf("reader %d has %d frames", i, conns[i].n)
		}
	}
}

// away drops every message.
type away struct{}

func (away) Send(id.MemberID, []byte)     {}
func (away) Receive(func([]byte), func()) {}
func (away) Up() bool                     { return true }

// The cost of publishing by the number of other nodes that watch.
func BenchmarkTextWithWatchingNodes(b *testing.B) {
	for _, nodes := range []int{0, 1, 2} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			w := newTown(b, 1, time.Minute)
			k := running(w.world)
			hs := w.nodes[0].hs
			hs.carrier = away{}
			hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
			l := hs.Begin(k.tenant, k.run, 2, 0, true)
			for range nodes {
				if _, err := hs.ServeWatch(b.Context(), id.MemberID{UUID: id.NewAnywhere()}, Watch{Begin: []WatchedRun{{k.tenant, k.run}}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Text(" token")
			}
		})
	}
}

// arrival signals each frame.
type arrival struct {
	sink
	came chan struct{}
}

func (a *arrival) Send(*event.Frame) bool { a.came <- struct{}{}; return true }

// The latency of a model's text from one node to a reader's connection on another.
func BenchmarkTextToAnotherNode(b *testing.B) {
	w, _ := redisTown(b, 2, time.Second)
	k := running(w.world)
	w.place(k.run.Shard(), 0)
	hs := w.nodes[0].hs
	hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
	l := hs.Begin(k.tenant, k.run, 2, 0, true)
	a := &arrival{came: make(chan struct{}, 1)}
	r := open(b, w.nodes[1].hs, k, event.Cursor{Since: -1}, a)
	defer r.Gone()
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		began := time.Now()
		l.Text(" token")
		<-a.came
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// 200 runs stream on one node and are read on another, as fast as possible.
func BenchmarkTextOf200RunsToAnotherNode(b *testing.B) {
	w, _ := redisTown(b, 2, time.Second)
	hs := w.nodes[0].hs
	texts := make([]interface{ Text(string) }, 200)
	ends := make([]*counting, len(texts))
	var wg sync.WaitGroup
	room := make(chan struct{}, 4096)
	for i := range texts {
		k := running(w.world)
		w.place(k.run.Shard(), 0)
		hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
		texts[i] = hs.Begin(k.tenant, k.run, 2, 0, true)
		ends[i] = &counting{room: room}
		wg.Go(func() {
			r := open(b, w.nodes[1].hs, k, event.Cursor{Since: -1}, ends[i])
			b.Cleanup(r.Gone)
		})
	}
	wg.Wait()
	i := 0
	for b.Loop() {
		room <- struct{}{}
		texts[i%len(texts)].Text(" token")
		i++
	}
	for range cap(room) { // until the last token has arrived
		room <- struct{}{}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
}

// counting makes room for the next frame.
type counting struct {
	sink
	room chan struct{}
}

func (c *counting) Send(f *event.Frame) bool {
	for range len(f.Text) / len(" token") { // one frame holds several tokens after a mirror was renewed
		<-c.room
	}
	return true
}

func (c *counting) SendAll(fs []*event.Frame) bool {
	for _, f := range fs {
		c.Send(f)
	}
	return true
}

func (c *counting) Backfill(fs []*event.Frame) bool { return c.SendAll(fs) }
