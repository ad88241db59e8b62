package stream

import (
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
)

// shards is how many shelves hold the hubs; it is a power of two.
const shards = 64

// splitAbove is how many readers one goroutine serves.
const splitAbove = 256

// key identifies a run's hub.
type key struct {
	tenant id.TenantID
	run    id.RunID
}

// shelf is one shard of the map of hubs.
type shelf struct {
	mu   sync.Mutex // guards hubs
	hubs map[key]*hub
}

// hub represents one run on this node.
type hub struct {
	all *Hubs
	key key

	mu      sync.Mutex // guards the fields below and those of its readers
	readers []*Reader
	pos     event.Pos // everything up to here was published by the current owner
	live    *speech   // the step in progress and its text so far
	owned   bool      // a publisher publishes everything that is committed
	term    uint32    // counts the publishers
	left    uint32    // Hubs.left of its shard when the publisher began
	seen    event.Pos // pos when the publisher's silence was last checked
	quiet   bool      // nothing was published between the last two checks
	outlet  *outlet   // the feed to other nodes that read the run; nil if there are none
	mirror  *mirror   // the publisher is on another node; nil when it is here or nowhere
	asked   time.Time // when a mirror was last requested
	pause   time.Duration
	reading *shared // the read of facts in progress
	next    *shared // the one after it
	gone    bool    // off the shelf; it must not be used any more
	stale   atomic.Bool
}

// shelf returns the shelf of a run: ids are random in their last bytes.
func (hs *Hubs) shelf(k key) *shelf { return &hs.shelves[int(k.run.UUID[15])%shards] }

// hold returns the run's hub with its lock held. If there is none it returns nil, or makes
// one if make is set.
func (hs *Hubs) hold(k key, make bool) *hub {
	s := hs.shelf(k)
	for {
		s.mu.Lock()
		h := s.hubs[k]
		if h == nil && make {
			h = &hub{all: hs, key: k}
			s.hubs[k] = h
			hubsOpen.Inc()
		}
		s.mu.Unlock()
		if h == nil {
			return nil
		}
		h.mu.Lock()
		if !h.gone {
			return h
		}
		h.mu.Unlock()
		hs.unshelve(h)
	}
}

// unshelve removes a hub that is gone from its shelf.
func (hs *Hubs) unshelve(h *hub) {
	s := hs.shelf(h.key)
	s.mu.Lock()
	if s.hubs[h.key] == h {
		delete(s.hubs, h.key)
		hubsOpen.Dec()
	}
	s.mu.Unlock()
}

// release ends a hold. It removes a hub without owner and readers, and drops a mirror without
// readers.
func (h *hub) release() {
	if len(h.readers) == 0 {
		if h.mirror != nil {
			h.unmirror()
		}
		if !h.owned && h.outlet == nil {
			h.gone = true
		}
	}
	gone := h.gone
	h.mu.Unlock()
	if gone {
		h.all.unshelve(h)
	}
}

// Publish sends frames of committed facts to the run's readers, in order. The caller becomes
// the run's publisher until Abandon or the terminal frame, which closes the readers. A
// publisher publishes every fact that it commits, and nothing that is not committed.
func (hs *Hubs) Publish(tenant id.TenantID, run id.RunID, frames ...*event.Frame) {
	if len(frames) == 0 {
		return
	}
	last := frames[len(frames)-1]
	hs.publish(key{tenant, run}, last.Pos.Seq, last.Type.Terminal(), func() []*event.Frame { return frames })
}

// PublishFunc is Publish for frames that are made only if the run has readers. last is the
// number of the last frame; terminal means that it ends the run.
func (hs *Hubs) PublishFunc(tenant id.TenantID, run id.RunID, last int64, terminal bool, frames func() []*event.Frame) {
	hs.publish(key{tenant, run}, last, terminal, frames)
}

func (hs *Hubs) publish(k key, last int64, terminal bool, frames func() []*event.Frame) {
	h := hs.hold(k, !terminal)
	if h == nil {
		return // it ended without readers
	}
	defer h.release()
	if h.mirror != nil {
		h.unmirror() // the run has moved here
	}
	h.reach(last)
	if len(h.readers) > 0 || h.outlet != nil {
		for _, f := range frames() {
			h.send(f)
			if h.outlet != nil {
				h.feedFrame(f)
			}
		}
	}
	switch {
	case terminal:
		h.end()
	case !hs.mine(k):
		h.yield() // the run moves away: this was the last publication here
	}
}

// mine reports whether a run lives on this node, because the node owns it or because it is
// finishing work that it began. A hub without a mirror may have an owner only while that is
// true: a publisher checks it after each publication, and a review follows each new member
// list.
func (hs *Hubs) mine(k key) bool {
	return hs.peers == nil || hs.peers.Owner(k.run.Shard()) == hs.self || hs.finishes(k)
}

// finishes reports whether a run is still working on this node, whichever node owns it.
func (hs *Hubs) finishes(k key) bool {
	return hs.holds != nil && hs.holds(cluster.Address{Kind: msg.KindRun, Tenant: k.tenant, ID: k.run.UUID})
}

// reach records that the publisher has reached the fact with number last.
func (h *hub) reach(last int64) {
	h.own()
	if at := (event.Pos{Seq: last}); h.pos.Before(at) {
		h.pos = at
	}
	if h.live != nil && h.live.seq < last {
		h.live = nil // anything after a step means that the step is over
	}
}

// own records that the hub has a publisher.
func (h *hub) own() {
	left := h.all.left[h.key.run.Shard()].Load()
	if !h.owned || h.mirror == nil && h.left != left {
		h.owned, h.quiet, h.left = true, false, left
		h.seen = event.Pos{} // the check for silence starts anew
		h.term++
	}
}

// end records that the terminal frame was sent. A reader that is catching up has it in its
// queue, or finds it among the facts.
func (h *hub) end() {
	h.closeOutlet()
	h.owned, h.gone = false, true
}

// rest records that the hub has no publisher now.
func (h *hub) rest() {
	h.owned, h.live = false, nil
	if len(h.readers) > 0 {
		h.all.watch(h.key)
		h.all.kick() // a commit whose outcome the owner did not learn may stand
	}
}

// Abandon records that the caller publishes no more for the run, although it has not ended:
// its activation rests, has failed or moves. Readers wait for the next publisher, or for new
// facts.
func (hs *Hubs) Abandon(tenant id.TenantID, run id.RunID) {
	h := hs.hold(key{tenant, run}, false)
	if h == nil {
		return
	}
	defer h.release()
	if h.mirror != nil {
		return // another activation publishes
	}
	h.yield()
}

// yield ends publishing here; the lock is held.
func (h *hub) yield() {
	h.rest()
	if h.outlet != nil {
		h.feedRested()
	}
	h.want() // the run may continue elsewhere
}

// Watched reports whether the run has readers, on this node or on others through it.
func (hs *Hubs) Watched(tenant id.TenantID, run id.RunID) bool {
	h := hs.hold(key{tenant, run}, false)
	if h == nil {
		return false
	}
	defer h.release()
	return len(h.readers) > 0 || h.outlet != nil
}

// Begin opens the live text of a model's step that was committed with the number seq, after
// its step.started was published. The text ends with the next published frame, the next Begin
// or Abandon; text written later is dropped. With relayed the text is also sent to readers of
// the embed relay.
func (hs *Hubs) Begin(tenant id.TenantID, run id.RunID, seq int64, idx int, relayed bool) model.Sink {
	h := hs.hold(key{tenant, run}, true)
	defer h.release()
	l := &speech{hub: h, seq: seq, idx: idx, relayed: relayed}
	if h.pos.Seq > seq || !hs.mine(h.key) {
		return l // the run has moved on, or away: the text is dropped
	}
	if h.mirror != nil {
		h.unmirror()
	}
	h.reach(seq)
	h.live = l
	if h.outlet != nil {
		h.feedBegan(l)
	}
	return l
}

// speech receives the text of one unfinished step.
type speech struct {
	hub     *hub
	seq     int64
	idx     int
	relayed bool // the relay gets the text; false also if unknown

	// Guarded by hub.mu. said only grows, so parts of it can be shared; segments are the byte
	// lengths of thinking and text in turn.
	said     []byte
	segments []int32
}

// Text appends text of the model's reply.
func (l *speech) Text(s string) { l.say(event.LLMDelta, s) }

// Thinking appends the model's thinking.
func (l *speech) Thinking(s string) { l.say(event.LLMThinking, s) }

func (l *speech) say(t event.Type, s string) {
	if s == "" {
		return
	}
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.add(t, s)
	if h.live != l {
		return
	}
	h.pos = event.Pos{Seq: l.seq, Offset: int64(len(l.said))}
	if len(h.readers) == 0 && h.outlet == nil {
		return
	}
	f := event.Delta(t, h.pos, l.idx, s)
	if l.relayed {
		f.AllowRelay()
	}
	if len(h.readers) > 0 {
		h.send(f)
	}
	if h.outlet != nil {
		h.feedFrame(f)
	}
}

// add appends text; the hub's lock is held.
func (l *speech) add(t event.Type, s string) {
	if turn := len(l.segments) % 2; len(l.segments) == 0 || (turn == 1) != (t == event.LLMThinking) {
		if len(l.segments) == 0 && t == event.LLMDelta {
			l.segments = append(l.segments, 0)
		}
		l.segments = append(l.segments, 0)
	}
	l.segments[len(l.segments)-1] += int32(len(s))
	l.said = append(l.said, s...)
}

// send brings f to every reader; the hub's lock is held.
func (h *hub) send(f *event.Frame) {
	n := len(h.readers)
	if n > splitAbove && h.all.workers > 1 {
		h.split(f)
	} else {
		h.deliver(h.readers, f)
	}
	framesSent.Add(float64(n))
	if h.stale.Swap(false) {
		kept := h.readers[:0]
		for _, r := range h.readers {
			if r.state != over {
				r.place = len(kept)
				kept = append(kept, r)
			}
		}
		clear(h.readers[len(kept):])
		h.readers = kept
	}
}

func (h *hub) deliver(readers []*Reader, f *event.Frame) {
	for _, r := range readers {
		r.take(f)
	}
}

// job is one worker's part of sending a frame.
type job struct {
	hub     *hub
	readers []*Reader
	frame   *event.Frame
	done    *sync.WaitGroup
}

// split spreads the readers over the workers and the caller, which holds the lock for all of
// them.
func (h *hub) split(f *event.Frame) {
	n, parts := len(h.readers), h.all.workers
	var done sync.WaitGroup
	own := h.readers[:n/parts]
	for i := 1; i < parts; i++ {
		done.Add(1)
		j := job{h, h.readers[n*i/parts : n*(i+1)/parts], f, &done}
		select {
		case h.all.jobs <- j:
		default: // every worker is busy
			j.run()
		}
	}
	h.deliver(own, f)
	done.Wait()
}

func (j job) run() {
	j.hub.deliver(j.readers, j.frame)
	j.done.Done()
}

// add and remove keep each reader's place, so that leaving costs the same for any number of
// readers. The lock is held.
func (h *hub) add(r *Reader) {
	r.place = len(h.readers)
	h.readers = append(h.readers, r)
}

func (h *hub) remove(r *Reader) {
	if r.place >= len(h.readers) || h.readers[r.place] != r {
		return
	}
	last := len(h.readers) - 1
	h.readers[r.place] = h.readers[last]
	h.readers[r.place].place = r.place
	h.readers[last] = nil
	h.readers = h.readers[:last]
}
