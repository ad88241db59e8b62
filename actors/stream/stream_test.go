package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/cluster/clustertest"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world holds the durable state of a test's runs.
type world struct {
	mu    sync.Mutex
	facts map[key]*event.Facts
	fail  error
	reads int
	// before runs before each read, without the lock.
	before func()
}

func (w *world) Facts(_ context.Context, tenant id.TenantID, run id.RunID, _ event.Cursor) (*event.Facts, error) {
	if w.before != nil {
		w.before()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	f := w.facts[key{tenant, run}]
	if w.fail != nil {
		return nil, w.fail
	}
	if f == nil {
		return nil, problem.NotFound("run")
	}
	c := *f
	c.Steps, c.Marks = slices.Clone(f.Steps), slices.Clone(f.Marks)
	return &c, nil
}

func (w *world) Heads(_ context.Context, keys []feed.Key) ([]feed.Head, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var heads []feed.Head
	for _, k := range keys {
		if f := w.facts[key{k.Tenant, k.Run}]; f != nil {
			heads = append(heads, feed.Head{Run: k.Run, Seq: f.Seq, Ended: f.Status.Terminal()})
		}
	}
	return heads, nil
}

func setUp(t testing.TB) (*Hubs, *world, *cluster.Node) {
	t.Helper()
	return setUpBy(t, 5*time.Millisecond)
}

// setUpBy is setUp with another Config.Watch.
func setUpBy(t testing.TB, watch time.Duration) (*Hubs, *world, *cluster.Node) {
	t.Helper()
	w := &world{facts: map[key]*event.Facts{}}
	n := clustertest.Node()
	hs := New(Config{Node: n, Source: w, Heads: w, Log: zerolog.Nop(), Watch: watch})
	if err := errors.Join(n.Start(t.Context()), hs.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hs.Stop()
		testkit.Stop(t, n.Stop)
	})
	return hs, w, n
}

// conn records the frames of a client. It hangs up after left frames.
type conn struct {
	mu     sync.Mutex
	frames []*event.Frame
	left   int // -1: never hangs up
	ended  bool
	cut    bool
	over   chan struct{}
	moved  chan struct{} // signalled by every frame
}

func newConn(left int) *conn {
	return &conn{left: left, over: make(chan struct{}), moved: make(chan struct{}, 1)}
}

func (c *conn) Send(f *event.Frame) bool { return c.SendAll([]*event.Frame{f}) }
func (c *conn) SendAll(fs []*event.Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range fs {
		if c.ended {
			return false
		}
		c.frames = append(c.frames, f)
		if c.left--; c.left == 0 {
			c.end()
		}
	}
	select {
	case c.moved <- struct{}{}:
	default:
	}
	return !c.ended
}
func (c *conn) Backfill(fs []*event.Frame) bool { return c.SendAll(fs) }
func (c *conn) Close()                          { c.mu.Lock(); c.end(); c.mu.Unlock() }

// Cut does nothing on a connection that has ended, like the real one.
func (c *conn) Cut() { c.mu.Lock(); c.cut = c.cut || !c.ended; c.end(); c.mu.Unlock() }
func (c *conn) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}
func (c *conn) end() {
	if !c.ended {
		c.ended = true
		close(c.over)
	}
}
func (c *conn) got() []*event.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// until waits until the client's frames satisfy ok.
func (c *conn) until(t testing.TB, what string, ok func([]*event.Frame) bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for !ok(c.got()) {
		select {
		case <-c.moved:
		case <-deadline.C:
			t.Fatalf("not in time: %s; got %s", what, list(c.got()))
		}
	}
}

func (c *conn) wait(t testing.TB) {
	t.Helper()
	select {
	case <-c.over:
	case <-time.After(time.Minute):
		t.Fatalf("the stream does not end; got %s", list(c.got()))
	}
}

func list(frames []*event.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "%s %s %s;", f.Pos, f.Type, f.Text)
	}
	return b.String()
}

// open opens and attaches a client.
func open(t testing.TB, hs *Hubs, k key, c event.Cursor, cn Conn) *Reader {
	t.Helper()
	return attach(t, hs.Open, k, c, cn)
}

// openRelay is open for a client of the relay.
func openRelay(t testing.TB, hs *Hubs, k key, c event.Cursor, cn Conn) *Reader {
	t.Helper()
	return attach(t, hs.OpenRelay, k, c, cn)
}

func attach(t testing.TB, open func(context.Context, id.TenantID, id.RunID, event.Cursor) (*Reader, error), k key, c event.Cursor, cn Conn) *Reader {
	t.Helper()
	r, err := open(t.Context(), k.tenant, k.run, c)
	if err != nil {
		t.Fatal(err)
	}
	r.Attach(cn)
	return r
}

// play is a run that a test drives: it commits to the world, then publishes.
type play struct {
	w   *world
	hs  *Hubs
	k   key
	r   *rand.Rand
	all []*event.Frame // as published
	// mixed makes some steps withhold their text from the relay.
	mixed bool
}

func newPlay(w *world, hs *Hubs, seed uint64) *play {
	p := &play{w: w, hs: hs, r: rand.New(rand.NewPCG(seed, 2)), k: key{id.TenantID{UUID: id.NewAnywhere()}, id.RunID{UUID: id.NewAnywhere()}}}
	agent := id.AgentID{UUID: id.UUID{1}}
	w.mu.Lock()
	w.facts[p.k] = &event.Facts{Run: p.k.run, Agent: &agent, Status: lifecycle.RunQueued}
	w.mu.Unlock()
	return p
}

func (p *play) pause() {
	for range p.r.IntN(4) {
		runtime.Gosched()
	}
}

// commit makes a fact durable and returns its frames.
func (p *play) commit(fact func(f *event.Facts) []*event.Frame) []*event.Frame {
	p.w.mu.Lock()
	frames := fact(p.w.facts[p.k])
	p.w.mu.Unlock()
	p.all = append(p.all, frames...)
	return frames
}

func (p *play) publish(frames []*event.Frame) {
	p.pause()
	p.hs.Publish(p.k.tenant, p.k.run, frames...)
}

func (p *play) start() []*event.Frame {
	return p.commit(func(f *event.Facts) []*event.Frame {
		f.Status, f.Started = lifecycle.RunRunning, true
		f.Seq++
		return []*event.Frame{event.Started(f.Run, f.Agent)}
	})
}

func (p *play) beginLLM() []*event.Frame {
	return p.commit(func(f *event.Facts) []*event.Frame {
		f.Seq++
		idx := len(f.Steps)
		f.Steps = append(f.Steps, event.StepFacts{Idx: idx, Kind: lifecycle.StepLLM, Name: "m", Status: lifecycle.StepRunning, BeganSeq: f.Seq,
			Relayed: !p.mixed || p.r.IntN(2) == 0})
		return []*event.Frame{event.StepBegan(f.Seq, idx, lifecycle.StepLLM, "m")}
	})
}

// speak writes n words into the last step and commits its end.
func (p *play) speak(n int) {
	p.w.mu.Lock()
	f := p.w.facts[p.k]
	s := f.Steps[len(f.Steps)-1]
	p.w.mu.Unlock()
	l := p.hs.Begin(p.k.tenant, p.k.run, s.BeganSeq, s.Idx, s.Relayed)
	var text, thinking string
	pos := event.Pos{Seq: s.BeganSeq}
	for range n {
		word := []string{"a", "bcd", "é", "😀 ", "\"q\"\n"}[p.r.IntN(5)]
		pos.Offset += int64(len(word))
		if p.r.IntN(8) == 0 || text == "" && p.r.IntN(2) == 0 {
			thinking += word
			l.Thinking(word)
			p.all = append(p.all, event.Delta(event.LLMThinking, pos, s.Idx, word))
		} else {
			text += word
			l.Text(word)
			f := event.Delta(event.LLMDelta, pos, s.Idx, word)
			if s.Relayed {
				f.AllowRelay()
			}
			p.all = append(p.all, f)
		}
		p.pause()
	}
	p.commit(func(f *event.Facts) []*event.Frame {
		s := &f.Steps[len(f.Steps)-1]
		s.Status, s.Segments = lifecycle.StepSucceeded, l.(*speech).segments
		s.Output, _ = json.Marshal(map[string]string{"text": text, "thinking": thinking})
		return nil
	})
}

func (p *play) tool() {
	p.publish(p.commit(func(f *event.Facts) []*event.Frame {
		f.Seq += 2
		idx := len(f.Steps)
		f.Steps = append(f.Steps, event.StepFacts{Idx: idx, Kind: lifecycle.StepTool, Name: "a.b", Status: lifecycle.StepRunning, BeganSeq: f.Seq - 1, CalledSeq: f.Seq, Input: json.RawMessage(`{}`)})
		return []*event.Frame{event.StepBegan(f.Seq-1, idx, lifecycle.StepTool, "a.b"), event.Called(f.Seq, idx, "a.b", json.RawMessage(`{}`))}
	}))
	p.publish(p.commit(func(f *event.Facts) []*event.Frame {
		f.Seq++
		s := &f.Steps[len(f.Steps)-1]
		s.Status, s.EndedSeq, s.Output = lifecycle.StepSucceeded, f.Seq, json.RawMessage(`1`)
		return []*event.Frame{event.Resulted(f.Seq, s.Idx, true, s.Output)}
	}))
}

func (p *play) end() []*event.Frame {
	return p.commit(func(f *event.Facts) []*event.Frame {
		f.Seq++
		f.Status, f.Output = lifecycle.RunSucceeded, json.RawMessage(`{"text":"x"}`)
		return []*event.Frame{event.Completed(f.Seq, f.Output, 0, 0, 0)}
	})
}

// told returns the content of frames, with neighbouring text of one kind merged.
func told(frames []*event.Frame) []string {
	var out []string
	var last *event.Frame
	for _, f := range frames {
		if last != nil && f.Text != "" {
			if m, ok := last.Merged(f); ok {
				last = m
				out[len(out)-1] = string(m.Bytes())
				continue
			}
		}
		last = nil
		if f.Text != "" {
			last = f
		}
		out = append(out, string(f.Bytes()))
	}
	return out
}

// relayOf returns those of the frames that the relay shows.
func relayOf(frames []*event.Frame) (out []*event.Frame) {
	for _, f := range frames {
		if f = f.Relay(); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// relayTold returns the content of relay frames, with the text of a step merged.
func relayTold(frames []*event.Frame) (out []string) {
	var last *event.Frame
	for _, f := range frames {
		if last != nil && f.Text != "" && last.Text != "" && last.Pos.Seq == f.Pos.Seq {
			f = event.Delta(f.Type, f.Pos, f.Idx, last.Text+f.Text)
			out = out[:len(out)-1]
		}
		last = f
		out = append(out, string(f.Bytes()))
	}
	return out
}

func increasing(t *testing.T, frames []*event.Frame) {
	t.Helper()
	for i := 1; i < len(frames); i++ {
		if !frames[i-1].Pos.Before(frames[i].Pos) {
			t.Fatalf("%v follows %v in %s", frames[i].Pos, frames[i-1].Pos, list(frames))
		}
	}
}

// Readers connect at any time, hang up at any frame and resume by id, while the run goes on, pauses
// and is taken over: each gets every frame exactly once.
func TestNoGapAndNoDuplicateWhateverTheInterleaving(t *testing.T) { noGap(t, 60) }

func noGap(t *testing.T, rounds int) {
	hs, w, _ := setUp(t)
	resumed := 0
	var mu sync.Mutex
	for seed := range uint64(rounds) {
		p := newPlay(w, hs, seed)
		p.mixed = true
		var wg sync.WaitGroup
		type client struct {
			since, relay bool
			frames       []*event.Frame
		}
		clients := make([]client, 9)
		for i := range clients {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(i)+10))
				for range r.IntN(60) {
					runtime.Gosched()
				}
				c := event.ReadCursor("", -1, true)
				read := open
				switch {
				case i >= 6:
					clients[i].relay, read = true, openRelay
				case i%3 == 0:
					clients[i].since, c = true, event.ReadCursor("", -1, false)
				}
				for {
					left := -1
					if !clients[i].since && r.IntN(4) > 0 {
						left = 1 + r.IntN(5)
					}
					cn := newConn(left)
					rd := read(t, hs, p.k, c, cn)
					cn.wait(t)
					rd.Gone()
					got := cn.got()
					clients[i].frames = append(clients[i].frames, got...)
					if n := len(clients[i].frames); n > 0 {
						last := clients[i].frames[n-1]
						if last.Type.Terminal() {
							return
						}
						c = event.ReadCursor(last.Pos.String(), -1, false)
						mu.Lock()
						resumed++
						mu.Unlock()
					}
				}
			})
		}
		p.publish(p.start())
		for range 3 {
			p.publish(p.beginLLM())
			p.speak(p.r.IntN(30))
			switch p.r.IntN(4) {
			case 0: // the activation ends, and another one continues
				p.hs.Abandon(p.k.tenant, p.k.run)
				p.pause()
			case 1: // its owner dies between commit and publish
				p.commit(func(f *event.Facts) []*event.Frame {
					f.Seq++
					f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq, Type: event.Handoff, Data: json.RawMessage(`{"from":"a","to":"b"}`)})
					return []*event.Frame{event.Marked(f.Seq, event.Handoff, json.RawMessage(`{"from":"a","to":"b"}`))}
				})
				p.hs.Abandon(p.k.tenant, p.k.run)
				p.pause()
			}
			p.tool()
		}
		if last := p.end(); p.r.IntN(4) == 0 {
			p.hs.Abandon(p.k.tenant, p.k.run) // the run dies before it publishes its end
		} else {
			p.publish(last)
		}
		wg.Wait()
		want := told(p.all)
		for i, c := range clients {
			increasing(t, c.frames)
			if c.relay {
				if got, want := relayTold(c.frames), relayTold(relayOf(p.all)); !slices.Equal(got, want) {
					t.Fatalf("seed %d client %d of the relay:\n got %q\nwant %q", seed, i, got, want)
				}
				continue
			}
			if !c.since {
				if got := told(c.frames); !slices.Equal(got, want) {
					t.Fatalf("seed %d client %d:\n got %q\nwant %q", seed, i, got, want)
				}
				continue
			}
			checkSince(t, seed, p, c.frames)
		}
	}
	if resumed < rounds {
		t.Errorf("only %d resumptions: the test proves nothing", resumed)
	}
}

// checkSince checks that run.started comes first, that every step began once, that no step's text is
// partial, and that the end is there.
func checkSince(t *testing.T, seed uint64, p *play, frames []*event.Frame) {
	t.Helper()
	full, texts := map[int]string{}, map[int]string{}
	began := map[int]int{}
	for _, f := range p.all {
		if f.Type == event.LLMDelta {
			full[f.Idx] += f.Text
		}
	}
	for _, f := range frames {
		switch f.Type {
		case event.LLMDelta:
			texts[f.Idx] += f.Text
		case event.StepStarted:
			began[int(f.Pos.Seq)]++
		}
	}
	if frames[0].Type != event.RunStarted || !frames[len(frames)-1].Type.Terminal() {
		t.Fatalf("seed %d: %s", seed, list(frames))
	}
	for idx, text := range texts {
		if text != full[idx] {
			t.Fatalf("seed %d: step %d has the text %q of %q", seed, idx, text, full[idx])
		}
	}
	for _, f := range p.all {
		if f.Type == event.StepStarted && began[int(f.Pos.Seq)] != 1 {
			t.Fatalf("seed %d: step.started %v was sent %d times", seed, f.Pos, began[int(f.Pos.Seq)])
		}
	}
}
