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
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"agentsvc/cluster"
	"agentsvc/persistence/cache"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// town is a few nodes, the calls between them, and the carrier of their messages.
type town struct {
	*world
	t     testing.TB
	codec *msg.Codec
	nodes []*house
	// ages makes nodes send what the version before the embed relay sent.
	ages bool

	mu     sync.Mutex // guards the fields below
	rand   *rand.Rand
	faults faults
	// during runs while a call is in flight, after the callee has answered.
	during func()
}

// faults are the faults of messages and calls, in a thousand.
type faults struct {
	drop, twice, slow int
	refuse            int // of calls
}

// house is one node of the town: its Peers and its Carrier.
type house struct {
	town  *town
	feed  *cache.Feed // replaces the town's own carrier
	place int
	id    id.MemberID
	// owners maps shards to nodes by this node's member list; guarded by town.mu.
	owners map[id.Shard]int
	node   *cluster.Node
	hs     *Hubs
	down   atomic.Bool
	cut    atomic.Bool // calls from and to this node fail
	// metered, if set, lets one message through for each value it receives, and all messages once
	// it is closed.
	metered atomic.Pointer[chan struct{}]

	take    func([]byte)
	lost    func()
	changed []func(cluster.Change)

	mu    sync.Mutex // guards inbox
	inbox [][]byte
	wake  chan struct{}
	done  sync.WaitGroup
}

func newTown(t testing.TB, nodes int, every time.Duration) *town {
	t.Helper()
	return newTownWith(t, nodes, every, "")
}

// newTownWith returns a town whose messages go through the Redis at url.
func newTownWith(t testing.TB, nodes int, every time.Duration, url string) *town {
	t.Helper()
	w := &town{world: &world{facts: map[key]*event.Facts{}}, t: t, codec: msg.NewCodec(),
		rand: rand.New(rand.NewPCG(1, 1))}
	AddTo(w.codec)
	for i := range nodes {
		h := &house{town: w, place: i, id: id.MemberID{UUID: id.NewAnywhere()}, owners: map[id.Shard]int{}, wake: make(chan struct{}, 1)}
		h.node = cluster.New(cluster.Config{Member: h.id, Log: zerolog.Nop()})
		var carrier Carrier = h
		if url != "" {
			c, err := cache.Open(url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			h.feed = c.NewFeed(h.id, zerolog.Nop())
			carrier = h.feed
		}
		h.hs = New(Config{Node: h.node, Source: w, Heads: w, Log: zerolog.Nop(), Watch: every, Peers: h, Carrier: carrier})
		w.nodes = append(w.nodes, h)
	}
	for _, h := range w.nodes {
		if err := errors.Join(h.node.Start(t.Context()), h.hs.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		if h.feed == nil {
			h.done.Go(func() { h.deliver(stop) })
		} else if err := h.feed.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if h.feed != nil {
				h.feed.Stop()
			}
			close(stop)
			h.done.Wait()
			h.hs.Stop()
			testkit.Stop(t, h.node.Stop)
		})
	}
	return w
}

var (
	_ Peers   = (*cluster.Node)(nil)
	_ Carrier = (*cache.Feed)(nil)
)

func (h *house) Member() id.MemberID { return h.id }

func (h *house) Owner(s id.Shard) id.MemberID {
	h.town.mu.Lock()
	defer h.town.mu.Unlock()
	return h.town.nodes[h.owners[s]].id
}

func (h *house) OnChange(f func(cluster.Change)) { h.changed = append(h.changed, f) }

// Call delivers m the way nodes do.
func (h *house) Call(ctx context.Context, to id.MemberID, service string, m any) (any, error) {
	w := h.town
	i := slices.IndexFunc(w.nodes, func(o *house) bool { return o.id == to })
	if w.chance(func(f faults) int { return f.refuse }) || h.cut.Load() || w.nodes[i].cut.Load() || service != Service {
		return nil, cluster.ErrUnknownMember
	}
	name, body, err := w.codec.Encode(m)
	if err != nil {
		return nil, err
	}
	ask, err := w.codec.Decode(name, body)
	if err != nil {
		return nil, err
	}
	got, err := w.nodes[i].hs.ServeWatch(ctx, h.id, ask)
	w.mu.Lock()
	during := w.during
	w.mu.Unlock()
	if during != nil {
		during()
	}
	if err != nil {
		return nil, err
	}
	if w.ages {
		for _, s := range got.(Watched).Begun {
			if s.Live != nil {
				s.Live.Relayed = false // so the field is left out
			}
		}
	}
	if name, body, err = w.codec.Encode(got); err != nil {
		return nil, err
	}
	return w.codec.Decode(name, body)
}

func (h *house) Send(to id.MemberID, m []byte) {
	w := h.town
	i := slices.IndexFunc(w.nodes, func(o *house) bool { return o.id == to })
	if h.down.Load() || w.nodes[i].down.Load() || w.chance(func(f faults) int { return f.drop }) {
		return
	}
	o := w.nodes[i]
	if w.ages {
		m = old(m)
	}
	o.mu.Lock()
	o.inbox = append(o.inbox, m)
	if w.chance(func(f faults) int { return f.twice }) {
		o.inbox = append(o.inbox, m)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (h *house) Receive(take func([]byte), lost func()) { h.take, h.lost = take, lost }
func (h *house) Up() bool                               { return !h.down.Load() }

func (h *house) deliver(stop chan struct{}) {
	for {
		select {
		case <-h.wake:
		case <-stop:
			return
		}
		for {
			h.mu.Lock()
			in := h.inbox
			h.inbox = nil
			h.mu.Unlock()
			if len(in) == 0 {
				break
			}
			for _, m := range in {
				if h.town.chance(func(f faults) int { return f.slow }) {
					for range 100 {
						runtime.Gosched()
					}
				}
				if c := h.metered.Load(); c != nil {
					select {
					case <-*c:
					case <-stop:
						return
					}
				}
				h.take(m)
			}
		}
	}
}

// flush drops the messages in flight to a house.
func (h *house) flush() {
	h.mu.Lock()
	h.inbox = nil
	h.mu.Unlock()
}

func (w *town) chance(of func(faults) int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := of(w.faults)
	return n > 0 && w.rand.IntN(1000) < n
}

func (w *town) set(f faults) {
	w.mu.Lock()
	w.faults = f
	w.mu.Unlock()
}

// place sets the owner of a shard before the first call.
func (w *town) place(s id.Shard, on int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.nodes {
		h.owners[s] = on
	}
}

// move gives a shard to a node and tells all nodes.
func (w *town) move(s id.Shard, to int) {
	w.mu.Lock()
	order := w.rand.Perm(len(w.nodes))
	w.mu.Unlock()
	for _, i := range order {
		w.nodes[i].hear(s, to)
		runtime.Gosched()
	}
}

// hear gives a node the member list by which a shard has moved.
func (h *house) hear(s id.Shard, to int) {
	h.town.mu.Lock()
	h.owners[s] = to
	h.town.mu.Unlock()
	for _, f := range h.changed {
		f(cluster.Change{})
	}
}

// newPlay returns a run on node 0.
func (w *town) newPlay(seed uint64) *play {
	p := newPlay(w.world, w.nodes[0].hs, seed)
	w.place(p.k.run.Shard(), 0)
	return p
}

func (w *town) empty() bool {
	for _, h := range w.nodes {
		if hubsOf(h.hs) > 0 || len(h.hs.allLinks()) > 0 {
			return false
		}
		h.hs.mu.Lock()
		n := len(h.hs.outlets)
		h.hs.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// mirrored waits until a node mirrors the run's publisher.
func (h *house) mirrored(t testing.TB, k key) {
	t.Helper()
	testkit.Eventually(t, "the run is mirrored", func() bool {
		hub := h.hs.hold(k, false)
		if hub == nil {
			return false
		}
		defer hub.release()
		return hub.mirror != nil && !hub.mirror.asking
	})
}

func TestAReaderOnAnotherNode(t *testing.T) {
	for _, c := range []struct {
		name   string
		cursor event.Cursor
		want   string
	}{
		{"default", event.ReadCursor("", -1, false), "1 run.started ;2 step.started ;2.3 llm.thinking hmm;2.5 llm.delta ab;"},
		{"since names the running step: nothing older than the connection", event.ReadCursor("", 0, false), ""},
		{"full", event.ReadCursor("", -1, true), "1 run.started ;2 step.started ;2.3 llm.thinking hmm;2.5 llm.delta ab;"},
		{"Last-Event-ID inside the running step: the rest", event.ReadCursor("2.4", -1, false), "2.5 llm.delta b;"},
		{"Last-Event-ID at its very position: nothing yet", event.ReadCursor("2.5", -1, false), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t, 2, time.Second)
			p := w.newPlay(1)
			p.publish(p.start())
			p.publish(p.beginLLM())
			l := p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
			l.Thinking("h")
			l.Thinking("mm")
			l.Text("a")
			l.Text("b")
			cn := newConn(-1)
			w.nodes[1].hs.join = testkit.Patience // else a reader that waits for long begins with the facts alone
			r := open(t, w.nodes[1].hs, p.k, c.cursor, cn)
			if got := list(cn.got()); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			n := len(cn.got())
			l.Text("c")
			p.publish(p.end())
			cn.wait(t)
			r.Gone()
			if got := list(cn.got()[n:]); got != "2.6 llm.delta c;3 run.completed ;" {
				t.Errorf("then %s", got)
			}
			testkit.Eventually(t, "nothing stays", w.empty)
		})
	}
}

func TestAReaderFollowsARunThatBeginsLater(t *testing.T) {
	w := newTown(t, 2, 10*time.Second) // nothing is asked again meanwhile
	p := w.newPlay(1)
	cn := newConn(-1)
	r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
	w.nodes[1].mirrored(t, p.k)
	reads := w.count()
	p.publish(p.start())
	p.publish(p.beginLLM())
	p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true).Text("x")
	cn.until(t, "the live text", has(3))
	p.tool()
	cn.until(t, "the tool's result", has(6))
	if n := w.count() - reads; n > 0 {
		t.Errorf("the facts were read %d times", n)
	}
	p.hs.Abandon(p.k.tenant, p.k.run) // the activation ends, and another one continues
	p.publish(p.beginLLM())
	l := p.hs.Begin(p.k.tenant, p.k.run, 6, 2, true)
	l.Text("y")
	cn.until(t, "the live text", has(8))
	if n := w.count() - reads; n > 1 { // the end of the activation may be followed by a look at the facts
		t.Errorf("the facts were read %d times", n)
	}
	p.publish(p.end())
	cn.wait(t)
	r.Gone()
	if got, want := list(cn.got()), "1 run.started ;2 step.started ;2.1 llm.delta x;3 step.started ;4 tool.called ;5 tool.result ;6 step.started ;6.1 llm.delta y;7 run.completed ;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
	testkit.Eventually(t, "nothing stays", w.empty)
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads
}

// Each fault alone: readers get what was lost, and live text continues.
func TestLostMessagesAreRecovered(t *testing.T) {
	for _, c := range []struct {
		name    string
		happens func(w *town, p *play, text func(string))
	}{
		{"a message of the middle", func(w *town, _ *play, text func(string)) {
			w.set(faults{drop: 1000})
			text("lost")
			w.set(faults{})
			text("next")
		}},
		{"the last message for now", func(w *town, _ *play, text func(string)) {
			w.set(faults{drop: 1000})
			text("lost")
			w.set(faults{})
		}},
		{"everything under way", func(w *town, _ *play, text func(string)) {
			text("a")
			w.nodes[1].flush()
			text("b")
		}},
		{"a message too long", func(_ *town, _ *play, text func(string)) { text(strings.Repeat("x", maxMessage)) }},
		{"messages come twice", func(w *town, _ *play, text func(string)) {
			w.set(faults{twice: 1000})
			text("a")
			text("b")
			w.set(faults{})
		}},
		{"the carrier is down and comes back", func(w *town, _ *play, text func(string)) {
			w.nodes[1].down.Store(true)
			text("lost")
			w.nodes[1].lost()
			w.nodes[1].down.Store(false)
			text("b")
		}},
		{"the carrier of the owner is down and comes back", func(w *town, _ *play, text func(string)) {
			w.nodes[0].down.Store(true)
			text("lost")
			w.nodes[0].down.Store(false)
		}},
		{"the owner is not to be called for a while", func(w *town, p *play, text func(string)) {
			w.nodes[0].cut.Store(true)
			testkit.Eventually(w.t, "the mirror is given up", func() bool {
				h := w.nodes[1].hs.hold(p.k, true)
				defer h.release()
				return h.mirror == nil || h.mirror.asking
			})
			text("lost")
			w.nodes[0].cut.Store(false)
			text("b")
		}},
		{"the owner has forgotten the watch", func(w *town, _ *play, text func(string)) {
			w.nodes[0].hs.expireWatches(time.Now().Add(time.Hour))
			text("b")
		}},
		{"another version speaks", func(w *town, p *play, text func(string)) {
			h := w.nodes[0].hs.hold(p.k, true)
			m := h.message(99)
			h.feed(m.appendHead(nil))
			h.release()
			text("b")
		}},
		{"noise", func(w *town, _ *play, text func(string)) {
			for _, b := range []string{"", "x", strings.Repeat("\x01", 100), strings.Repeat("\xff", 100)} {
				w.nodes[1].take([]byte(b))
			}
			text("b")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t, 2, 20*time.Millisecond)
			p := w.newPlay(1)
			p.publish(p.start())
			p.publish(p.beginLLM())
			l := p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
			cn := newConn(-1)
			r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
			w.nodes[1].mirrored(t, p.k)
			said := ""
			say := func(s string) { said += s; l.Text(s) }
			say("first ")
			c.happens(w, p, say)
			say(" last")
			cn.until(t, "all the text", func(fs []*event.Frame) bool { return text(fs, event.LLMDelta) == said })
			w.nodes[1].mirrored(t, p.k)
			n := len(cn.got())
			say("live")
			cn.until(t, "live text", has(n+1))
			p.commit(func(f *event.Facts) []*event.Frame {
				s := &f.Steps[0]
				s.Status, s.Segments = lifecycle.StepSucceeded, l.(*speech).segments
				s.Output, _ = json.Marshal(map[string]string{"text": said})
				return nil
			})
			p.publish(p.end())
			cn.wait(t)
			r.Gone()
			increasing(t, cn.got())
			if got := text(cn.got(), event.LLMDelta); got != said {
				t.Errorf("received %d bytes of %d", len(got), len(said))
			}
			testkit.Eventually(t, "nothing stays", w.empty)
		})
	}
}

// spoken returns a run whose first step is streaming on node 0.
func (w *town) spoken() (*play, *speech) {
	p := w.newPlay(1)
	p.publish(p.start())
	p.publish(p.beginLLM())
	return p, p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true).(*speech)
}

func (h *house) mirrorOf(k key) *mirror {
	hub := h.hs.hold(k, true)
	defer hub.release()
	return hub.mirror
}

// received returns the number of the last message that arrived.
func (m *mirror) received() uint64 {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	return m.number
}

func (w *town) calls(during func()) {
	w.mu.Lock()
	w.during = during
	w.mu.Unlock()
}

// The same mirror survives all of these: nothing was lost.
func TestAMirrorIsKeptIfNothingIsLost(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		name    string
		every   time.Duration
		happens func(w *town, m *mirror, say func(string))
	}{
		{"messages that come twice", never, func(w *town, _ *mirror, say func(string)) {
			w.set(faults{twice: 1000})
			say("a")
			say("b")
			w.set(faults{})
		}},
		{"a burst that takes longer than the grace", never, func(w *town, m *mirror, say func(string)) {
			h := w.nodes[1]
			through := make(chan struct{})
			h.metered.Store(&through)
			before := m.received()
			for range 500 {
				say("x")
			}
			for step := range uint64(3) {
				h.hs.allLinks()[0].exchange(nil, []*mirror{m}, nil) // a renewal
				through <- struct{}{}
				testkit.Eventually(w.t, "one more message", func() bool { return m.received() == before+step+1 })
				m.overdue() // the grace has passed
			}
			close(through)
		}},
		{"renewals", 400 * time.Millisecond, func(w *town, _ *mirror, _ func(string)) {
			var calls atomic.Int64
			w.calls(func() { calls.Add(1) })
			testkit.Eventually(w.t, "three renewals", func() bool { return calls.Load() > 3 })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTown(t, 2, c.every)
			p, l := w.spoken()
			cn := newConn(-1)
			r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
			defer r.Gone()
			w.nodes[1].mirrored(t, p.k)
			m := w.nodes[1].mirrorOf(p.k)
			said := ""
			say := func(s string) { said += s; l.Text(s) }
			c.happens(w, m, say)
			say("last")
			cn.until(t, "the text", func(fs []*event.Frame) bool { return text(fs, event.LLMDelta) == said })
			if m != w.nodes[1].mirrorOf(p.k) {
				t.Error("the mirror was dropped")
			}
		})
	}
}

func TestALostLastMessageIsNoticed(t *testing.T) {
	w := newTown(t, 2, 20*time.Millisecond)
	p, l := w.spoken()
	cn := newConn(-1)
	r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
	defer r.Gone()
	w.nodes[1].mirrored(t, p.k)
	w.set(faults{drop: 1000})
	l.Text("lost")
	w.set(faults{})
	cn.until(t, "what was lost", has(3))
}

// Messages sent after a snapshot that arrive before it are kept.
func TestMessagesThatOvertakeTheSnapshotAreKept(t *testing.T) {
	w := newTown(t, 2, time.Minute) // no mirror is renewed meanwhile
	p, l := w.spoken()
	l.Text("a")
	w.calls(func() {
		w.calls(nil)
		l.Text("b")
		l.Text("c")
		testkit.Eventually(t, "they are there", func() bool {
			hub := w.nodes[1].hs.hold(p.k, true)
			defer hub.release()
			return hub.mirror != nil && len(hub.mirror.early) == 2
		})
	})
	cn := newConn(-1)
	r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
	defer r.Gone()
	l.Text("d")
	cn.until(t, "all", func(fs []*event.Frame) bool { return text(fs, event.LLMDelta) == "abcd" })
}

// A reader that began while the owner was unreachable catches up with the mirror.
func TestAReaderCatchesUpWithALateMirror(t *testing.T) {
	w := newTown(t, 2, 20*time.Millisecond)
	p, l := w.spoken()
	l.Text("abc")
	w.nodes[0].cut.Store(true)
	r, err := w.nodes[1].hs.Open(t.Context(), p.k.tenant, p.k.run, event.ReadCursor("", -1, true))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Gone()
	w.nodes[0].cut.Store(false)
	w.nodes[1].mirrored(t, p.k)
	cn := newConn(-1)
	r.Attach(cn)
	if got, want := list(cn.got()), "1 run.started ;2 step.started ;2.3 llm.delta abc;"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestAWatchEndsWithItsLastReader(t *testing.T) {
	w := newTown(t, 2, time.Minute) // the watch does not expire meanwhile
	w.nodes[1].hs.join = testkit.Patience
	p, _ := w.spoken()
	for range 3 {
		r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), newConn(-1))
		if !w.nodes[0].hs.Watched(p.k.tenant, p.k.run) {
			t.Fatal("no node watches the run")
		}
		r.Gone()
		testkit.Eventually(t, "the watch has ended", func() bool { return !w.nodes[0].hs.Watched(p.k.tenant, p.k.run) })
	}
}

// The run moves while its former owner answers a watch.
func TestAnAnswerOfTheFormerOwnerIsIgnored(t *testing.T) {
	w := newTown(t, 3, time.Minute)
	p, _ := w.spoken()
	moved := make(chan struct{})
	w.calls(func() {
		w.calls(nil)
		w.move(p.k.run.Shard(), 2)
		close(moved)
		testkit.Eventually(t, "the new owner is asked", func() bool {
			m := w.nodes[1].mirrorOf(p.k)
			return m != nil && m.link.to == w.nodes[2].id
		})
	})
	cn := newConn(-1)
	r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
	defer r.Gone()
	<-moved
	w.nodes[1].mirrored(t, p.k)
	p.hs = w.nodes[2].hs
	p.publish(p.beginLLM())
	p.hs.Begin(p.k.tenant, p.k.run, 3, 1, true).Text("x")
	cn.until(t, "the new owner's text", has(4))
	testkit.Eventually(t, "the former owner is not watched", func() bool { return !w.nodes[0].hs.Watched(p.k.tenant, p.k.run) })
}

// A publisher on this node ends while a reader catches up. Another node streams the rest of its
// step, and the next step is published here again.
func TestAStepEndedByAnotherNodeIsNotMissed(t *testing.T) {
	for name, attached := range map[string]bool{"live": true, "catching up": false} {
		t.Run(name, func(t *testing.T) {
			hs, w, _ := setUp(t)
			p := newPlay(w, hs, 1)
			p.publish(p.start())
			p.publish(p.beginLLM())
			hs.Begin(p.k.tenant, p.k.run, 2, 0, true).Text("ab")
			r, err := hs.Open(t.Context(), p.k.tenant, p.k.run, event.ReadCursor("", -1, true))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Gone()
			cn := newConn(-1)
			if attached {
				r.Attach(cn)
			}
			hs.Abandon(p.k.tenant, p.k.run)
			p.commit(func(f *event.Facts) []*event.Frame {
				f.Steps[0].Status, f.Steps[0].Output = lifecycle.StepSucceeded, json.RawMessage(`{"text":"abcd"}`)
				return nil
			})
			p.publish(p.beginLLM())
			if !attached {
				r.Attach(cn)
			}
			cn.until(t, "the next step", func(fs []*event.Frame) bool { return len(fs) > 0 && fs[len(fs)-1].Pos.Seq == 3 })
			if got := text(cn.got(), event.LLMDelta); got != "abcd" {
				t.Errorf("received %q", got)
			}
			increasing(t, cn.got())
		})
	}
}

// Without a carrier, or with one that is down, readers follow the committed facts.
func TestWithoutACarrierReadersFollowTheFacts(t *testing.T) {
	w := newTown(t, 2, 20*time.Millisecond)
	for _, h := range w.nodes {
		h.down.Store(true)
	}
	p := w.newPlay(1)
	cn := newConn(-1)
	r := open(t, w.nodes[1].hs, p.k, event.ReadCursor("", -1, true), cn)
	p.publish(p.start())
	cn.until(t, "run.started", has(1))
	p.publish(p.beginLLM())
	cn.until(t, "step.started", has(2))
	p.speak(20)
	p.tool()
	p.publish(p.end())
	cn.wait(t)
	r.Gone()
	increasing(t, cn.got())
	if got, want := told(cn.got()), told(p.all); !slices.Equal(got, want) {
		t.Errorf("got %q want %q", got, want)
	}
	testkit.Eventually(t, "nothing stays", w.empty)
}

// Two nodes read a run, and one of them becomes its owner: the other follows it.
func TestARunThatMovesIsFollowed(t *testing.T) {
	w := newTown(t, 3, time.Second)
	p := w.newPlay(1)
	var conns []*conn
	var readers []*Reader
	for _, h := range w.nodes {
		cn := newConn(-1)
		conns = append(conns, cn)
		readers = append(readers, open(t, h.hs, p.k, event.ReadCursor("", -1, true), cn))
	}
	p.publish(p.start())
	for round, to := range []int{1, 2, 0} {
		p.publish(p.beginLLM())
		l := p.hs.Begin(p.k.tenant, p.k.run, int64(round+2), round, true)
		for _, h := range w.nodes {
			if h.hs != p.hs {
				h.mirrored(t, p.k)
			}
		}
		l.Text("x")
		for i, cn := range conns {
			cn.until(t, fmt.Sprint("live text on node ", i), func(fs []*event.Frame) bool { return strings.Count(list(fs), "llm.delta") == round+1 })
		}
		w.move(p.k.run.Shard(), to)
		p.hs.Abandon(p.k.tenant, p.k.run)
		p.hs = w.nodes[to].hs
	}
	p.publish(p.end())
	want := "1 run.started ;2 step.started ;2.1 llm.delta x;3 step.started ;3.1 llm.delta x;4 step.started ;4.1 llm.delta x;5 run.completed ;"
	for i, cn := range conns {
		cn.wait(t)
		readers[i].Gone()
		if got := list(cn.got()); got != want {
			t.Errorf("node %d got %s", i, got)
		}
	}
	testkit.Eventually(t, "nothing stays", w.empty)
}

// Readers connect to any node at any time, hang up and resume on another node. Meanwhile
// messages are lost, doubled and delayed, calls fail, nodes lose their carrier, and the run moves
// or dies in the middle of a step and continues elsewhere. Each reader gets exactly the frames of
// its view, in order.
func TestReadersOnEveryNodeGetExactlyTheFrames(t *testing.T) { exactFrames(t, 1) }

// exactFrames tries a hundred histories so many times.
func exactFrames(t *testing.T, times int) {
	w := newTown(t, 3, 5*time.Millisecond)
	resumed, live, relayed, withheld, runs := 0, 0, 0, 0, 0
	check := func(t *rapid.T) {
		w.set(faults{drop: rapid.SampledFrom([]int{0, 0, 5, 50, 500}).Draw(t, "drop"), twice: rapid.SampledFrom([]int{0, 100}).Draw(t, "twice"),
			slow: rapid.SampledFrom([]int{0, 200}).Draw(t, "slow"), refuse: rapid.SampledFrom([]int{0, 0, 200}).Draw(t, "refuse")})
		acts := rapid.SliceOfN(rapid.SampledFrom([]string{"speak", "speak", "tool", "rest", "move", "die", "unsaid", "leave", "behind", "flush", "down", "up", "wait"}), 1, 12).Draw(t, "acts")
		p := w.newPlay(rapid.Uint64().Draw(t, "seed"))
		p.mixed = true
		type client struct {
			relay  bool
			frames []*event.Frame
			err    error
		}
		clients := make([]client, 9)
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				c := &clients[i]
				r := rand.New(rand.NewPCG(uint64(runs), uint64(i)))
				for range r.IntN(200) {
					runtime.Gosched()
				}
				cursor := event.ReadCursor("", -1, true)
				c.relay = i >= 6
				for {
					left := -1
					if r.IntN(3) > 0 {
						left = 1 + r.IntN(6)
					}
					cn := newConn(left)
					hs := w.nodes[(i+r.IntN(2))%3].hs
					open := hs.Open
					if c.relay {
						open = hs.OpenRelay
					}
					rd, err := open(w.t.Context(), p.k.tenant, p.k.run, cursor)
					if err != nil {
						c.err = err
						return
					}
					rd.Attach(cn)
					select {
					case <-cn.over:
					case <-time.After(time.Minute):
						c.err = fmt.Errorf("the stream does not end; it has %s", list(cn.got()))
						return
					}
					rd.Gone()
					c.frames = append(c.frames, cn.got()...)
					if n := len(c.frames); n > 0 {
						last := c.frames[n-1]
						if last.Type.Terminal() {
							return
						}
						cursor = event.ReadCursor(last.Pos.String(), -1, false)
					}
				}
			})
		}
		at := 0
		unsaid := map[int]bool{} // steps whose text was lost with their node
		var deaf []func()        // nodes that do not know of a move yet
		var late sync.WaitGroup  // activations that must end before the next one on their node
		hear := func() {
			late.Wait()
			for _, f := range deaf {
				f()
			}
			deaf = nil
		}
		// leave moves the run: its activation ends without Abandon, the next one begins with Abandon,
		// and some nodes do not know the new owner yet.
		leave := func() {
			hear()
			at = (at + 1 + p.r.IntN(2)) % 3
			to := at
			for _, i := range p.r.Perm(3) {
				tell := func() { w.nodes[i].hear(p.k.run.Shard(), to) }
				if i == at || p.r.IntN(2) == 0 {
					tell()
				} else {
					deaf = append(deaf, tell)
				}
			}
			p.hs = w.nodes[at].hs
			p.hs.Abandon(p.k.tenant, p.k.run)
		}
		move := func(abandon bool) {
			hear()
			old := p.hs
			at = (at + 1 + p.r.IntN(2)) % 3
			if abandon && p.r.IntN(2) == 0 {
				old.Abandon(p.k.tenant, p.k.run)
				abandon = false
			}
			w.move(p.k.run.Shard(), at)
			p.hs = w.nodes[at].hs
			if abandon {
				old.Abandon(p.k.tenant, p.k.run)
			}
			p.hs.Abandon(p.k.tenant, p.k.run) // as every activation does first
		}
		p.publish(p.start())
		for _, act := range acts {
			switch act {
			case "speak":
				p.publish(p.beginLLM())
				p.speak(p.r.IntN(30))
			case "tool":
				p.tool()
			case "rest":
				p.hs.Abandon(p.k.tenant, p.k.run)
			case "move":
				move(true)
			case "die": // between commit and publish
				p.commit(func(f *event.Facts) []*event.Frame {
					f.Seq++
					f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq, Type: event.Handoff, Data: json.RawMessage(`{"from":"a","to":"b"}`)})
					return []*event.Frame{event.Marked(f.Seq, event.Handoff, json.RawMessage(`{"from":"a","to":"b"}`))}
				})
				move(true)
			case "unsaid": // in the middle of a step, while the former owner still streams it
				p.publish(p.beginLLM())
				p.w.mu.Lock()
				s := &p.w.facts[p.k].Steps[len(p.w.facts[p.k].Steps)-1]
				s.Status = lifecycle.StepAbandoned
				seq, idx := s.BeganSeq, s.Idx
				p.w.mu.Unlock()
				unsaid[idx] = true
				l, old := p.hs.Begin(p.k.tenant, p.k.run, seq, idx, s.Relayed), p.hs
				for range 5 {
					l.Text("unsaid ")
					p.pause()
				}
				move(false)
				l.Text("more ")
				p.publish(p.beginLLM())
				l.Text("late")
				old.Abandon(p.k.tenant, p.k.run)
				p.speak(3)
			case "leave":
				leave()
			case "behind": // between commit and publish, but the former owner still publishes what it committed
				frames := p.commit(func(f *event.Facts) []*event.Frame {
					f.Seq++
					f.Marks = append(f.Marks, event.MarkFacts{Seq: f.Seq, Type: event.Handoff, Data: json.RawMessage(`{"from":"a","to":"b"}`)})
					return []*event.Frame{event.Marked(f.Seq, event.Handoff, json.RawMessage(`{"from":"a","to":"b"}`))}
				})
				old := p.hs
				leave()
				late.Go(func() { old.Publish(p.k.tenant, p.k.run, frames...) })
			case "flush":
				for _, h := range w.nodes {
					h.flush()
				}
			case "down":
				h := w.nodes[p.r.IntN(3)]
				h.down.Store(true)
				h.lost()
			case "up":
				for _, h := range w.nodes {
					h.down.Store(false)
				}
			case "wait":
				for range 2000 {
					runtime.Gosched()
				}
			}
		}
		if p.r.IntN(2) == 0 {
			hear() // otherwise some never do
		}
		if last := p.end(); p.r.IntN(4) == 0 {
			p.hs.Abandon(p.k.tenant, p.k.run) // the run dies before it publishes its end
		} else {
			p.publish(last)
		}
		wg.Wait()
		hear()
		for _, h := range w.nodes {
			h.down.Store(false)
		}
		said := func(frames []*event.Frame) []*event.Frame {
			return slices.DeleteFunc(slices.Clone(frames), func(f *event.Frame) bool { return f.Type.Text() && unsaid[f.Idx] })
		}
		want, wantRelay := told(said(p.all)), relayTold(relayOf(said(p.all)))
		secret := map[int]bool{} // steps that withhold their text
		for _, s := range w.facts[p.k].Steps {
			secret[s.Idx] = s.Kind == lifecycle.StepLLM && !s.Relayed
			if secret[s.Idx] {
				withheld++
			}
		}
		for i, c := range clients {
			if c.err != nil {
				t.Fatalf("client %d: %v\nof %s", i, c.err, list(p.all))
			}
			for j := 1; j < len(c.frames); j++ {
				if !c.frames[j-1].Pos.Before(c.frames[j].Pos) {
					t.Fatalf("client %d: %v after %v", i, c.frames[j].Pos, c.frames[j-1].Pos)
				}
			}
			if c.relay {
				if got := relayTold(said(c.frames)); !slices.Equal(got, wantRelay) {
					t.Fatalf("client %d of the relay:\n got %q\nwant %q\nof %s", i, got, wantRelay, list(p.all))
				}
				for _, f := range c.frames {
					if f.Text != "" && secret[f.Idx] {
						t.Fatalf("client %d of the relay got withheld text: %q", i, f.Bytes())
					}
					if f.Text != "" {
						relayed++
					}
				}
				continue
			}
			if got := told(said(c.frames)); !slices.Equal(got, want) {
				t.Fatalf("client %d:\n got %q\nwant %q", i, got, want)
			}
			resumed += len(c.frames) / 6
			for _, f := range c.frames {
				if f.Type.Text() {
					live++
				}
			}
		}
		runs++
	}
	for range times {
		rapid.Check(t, check)
	}
	w.set(faults{})
	if runs < 50 || resumed < runs || live < runs || relayed < runs || withheld < runs/2 {
		t.Errorf("%d runs, %d resumptions, %d texts, %d relayed, %d steps withheld: the test proves nothing", runs, resumed, live, relayed, withheld)
	}
	testkit.Eventually(t, "nothing stays", w.empty)
}

// Readers that miss the same frames share one read of the facts.
func TestReadersThatFallBehindShareARead(t *testing.T) {
	hs, w, _ := setUp(t)
	p := newPlay(w, hs, 1)
	p.publish(p.start())
	conns, readers := make([]*conn, 1000), make([]*Reader, 1000)
	for i := range conns {
		conns[i] = newConn(-1)
		readers[i] = open(t, hs, p.k, event.ReadCursor("", -1, true), conns[i])
		defer readers[i].Gone()
	}
	reads := w.count()
	behind := make(chan struct{})
	w.before = func() { <-behind; <-time.After(20 * time.Millisecond) } // like a busy database
	p.beginLLM()                                                        // never published
	p.publish(p.callTool())
	testkit.Eventually(t, "all readers fall behind", func() bool {
		return !slices.ContainsFunc(readers, func(r *Reader) bool {
			r.hub.mu.Lock()
			defer r.hub.mu.Unlock()
			return r.state != catching
		})
	})
	close(behind)
	for i, cn := range conns {
		cn.until(t, fmt.Sprint("what reader ", i, " missed"), has(4))
	}
	if n := w.count() - reads; n > 100 {
		t.Errorf("%d reads for %d readers", n, len(conns))
	}
	p.publish(p.end())
	for _, cn := range conns {
		cn.wait(t)
		if got, want := told(cn.got()), told(p.all); !slices.Equal(got, want) {
			t.Fatalf("got %q want %q", got, want)
		}
	}
}

// asked is a Source that reports where each read begins, and waits until the test lets it.
type asked struct {
	from chan event.Pos
	let  chan struct{}
}

func (a *asked) Facts(_ context.Context, _ id.TenantID, run id.RunID, c event.Cursor) (*event.Facts, error) {
	a.from <- c.After
	<-a.let
	return &event.Facts{Run: run, Seq: c.After.Seq}, nil
}

// A read that several readers share starts from the earliest position, and begins after all of
// them asked.
func TestASharedReadServesTheEarliestReader(t *testing.T) {
	hs, w, _ := setUp(t)
	source := &asked{make(chan event.Pos), make(chan struct{})}
	hs.source = source
	h := hs.hold(newPlay(w, hs, 1).k, true)
	h.mu.Unlock()
	got := make(chan int64, 4)
	read := func(seq int64) {
		facts, err := hs.readShared(h, event.Pos{Seq: seq})
		if err != nil {
			t.Error(err)
			got <- -1
			return
		}
		got <- facts.Seq
	}
	waiting := func(seq int64) {
		t.Helper()
		testkit.Eventually(t, "the next read begins at the earlier position", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.next != nil && h.next.from.Seq == seq
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() { read(9) })
	if at := <-source.from; at.Seq != 9 {
		t.Fatalf("read from %v", at)
	}
	wg.Go(func() { read(7) })
	waiting(7)
	wg.Go(func() { read(2) })
	waiting(2)
	wg.Go(func() { read(5) })
	source.let <- struct{}{}
	if seq := <-got; seq != 9 {
		t.Errorf("the first was answered from %d", seq)
	}
	for n := 0; n < 3; { // the last reader may have asked too late for the second read
		select {
		case at := <-source.from:
			if at.Seq != 2 && at.Seq != 5 {
				t.Errorf("read from %v", at)
			}
			source.let <- struct{}{}
		case seq := <-got:
			if n++; seq != 2 && seq != 5 {
				t.Errorf("answered from %d", seq)
			}
		}
	}
	wg.Wait()
	if h.next != nil || h.reading != nil {
		t.Error("a read is left")
	}
}

// callTool begins a tool's step.
func (p *play) callTool() []*event.Frame {
	return p.commit(func(f *event.Facts) []*event.Frame {
		f.Seq += 2
		idx := len(f.Steps)
		f.Steps = append(f.Steps, event.StepFacts{Idx: idx, Kind: lifecycle.StepTool, Name: "a.b", Status: lifecycle.StepRunning, BeganSeq: f.Seq - 1, CalledSeq: f.Seq, Input: json.RawMessage(`{}`)})
		return []*event.Frame{event.StepBegan(f.Seq-1, idx, lifecycle.StepTool, "a.b"), event.Called(f.Seq, idx, "a.b", json.RawMessage(`{}`))}
	})
}

// A reader leaves before its mirror was asked for, and another one of the same run comes. The
// member has one feed for both: that of the second is not ended with the first.
func TestAReaderThatComesBackBeforeItsMirror(t *testing.T) {
	w := newTown(t, 2, time.Minute) // nothing is renewed or asked again meanwhile
	here := w.nodes[1]
	p, busy := w.newPlay(1), w.newPlay(2)
	for _, p := range []*play{p, busy} {
		p.publish(p.start())
	}
	p.publish(p.beginLLM())
	l := p.hs.Begin(p.k.tenant, p.k.run, 2, 0, true)
	l.Text("a")

	called, release := make(chan struct{}, 100), make(chan struct{})
	w.mu.Lock()
	w.during = func() { called <- struct{}{}; <-release }
	w.mu.Unlock()
	first := make(chan error, 1)
	go func() {
		r, err := here.hs.Open(t.Context(), busy.k.tenant, busy.k.run, event.ReadCursor("", -1, false))
		if err == nil {
			defer r.Gone()
		}
		first <- err
	}()
	<-called // the link is in a call
	left, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := here.hs.Open(left, p.k.tenant, p.k.run, event.ReadCursor("", -1, false))
	if err != nil {
		t.Fatal(err)
	}
	r.Gone()
	testkit.Eventually(t, "the first reader is gone", func() bool {
		h := here.hs.hold(p.k, false)
		if h != nil {
			defer h.release()
		}
		return h == nil
	})
	cn := newConn(-1)
	r = open(t, here.hs, p.k, event.ReadCursor("", -1, false), cn)
	defer r.Gone()
	close(release)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	here.mirrored(t, p.k)
	testkit.Eventually(t, "the link has nothing left to do", func() bool {
		for _, l := range here.hs.allLinks() {
			l.mu.Lock()
			busy := l.busy
			l.mu.Unlock()
			if busy {
				return false
			}
		}
		return true
	})
	l.Text("b")
	p.publish(p.end())
	cn.wait(t)
	if got := list(cn.got()); !strings.HasSuffix(got, "2.2 llm.delta b;3 run.completed ;") {
		t.Errorf("got %s", got)
	}
}
