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

// shards spread the look-up of hubs; their number is a power of two.
const shards = 64

// splitAbove is how many readers one goroutine serves alone.
const splitAbove = 256

// key names a run on a hub's shelf.
type key struct {
	tenant id.TenantID
	run    id.RunID
}

// shelf is one shard of the hubs.
type shelf struct {
	mu   sync.Mutex // guards hubs
	hubs map[key]*hub
}

// hub is one run on this node.
type hub struct {
	all *Hubs
	key key

	mu      sync.Mutex // guards the fields below and those of its readers
	readers []*Reader
	pos     event.Pos // everything up to here was published by the present owner
	live    *speech   // the step that is being spoken, as far as it was
	owned   bool      // somebody publishes whatever is committed
	term    uint32    // counts the publishers
	left    uint32    // Hubs.left of its shard when it began to be owned
	seen    event.Pos // pos when it was last looked whether anything is said
	quiet   bool      // nothing was said between the last two looks
	outlet  *outlet   // the feed to other nodes that read the run; nil for none
	mirror  *mirror   // the publisher is on another node; nil when it is here or nowhere
	asked   time.Time // when a mirror was last asked for
	pause   time.Duration
	reading *shared // the read of facts that is under way
	next    *shared // the one after it
	gone    bool    // off the shelf; nobody may use it any more
	stale   atomic.Bool
}

// shelf of a run: ids are random in their last bytes.
func (hs *Hubs) shelf(k key) *shelf { return &hs.shelves[int(k.run.UUID[15])%shards] }

// hold is the run's hub with its lock held, or nil where there is none and it is
// not to be made.
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

// unshelve takes a hub that is gone off its shelf.
func (hs *Hubs) unshelve(h *hub) {
	s := hs.shelf(h.key)
	s.mu.Lock()
	if s.hubs[h.key] == h {
		delete(s.hubs, h.key)
		hubsOpen.Dec()
	}
	s.mu.Unlock()
}

// release ends a hold. A hub that nobody owns or watches goes, and a mirror that
// nobody reads.
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

// Publish tells the readers of a run frames of facts that are committed, in
// their order. The caller thereby is the run's publisher until Abandon or the
// terminal frame, after which the readers are closed: every fact that it commits
// it publishes, and it publishes nothing that is not committed.
func (hs *Hubs) Publish(tenant id.TenantID, run id.RunID, frames ...*event.Frame) {
	if len(frames) == 0 {
		return
	}
	last := frames[len(frames)-1]
	hs.publish(key{tenant, run}, last.Pos.Seq, last.Type.Terminal(), func() []*event.Frame { return frames })
}

// PublishFunc is Publish for frames that are made only if somebody watches. last
// is the number of the last of them, terminal says that it ends the run.
func (hs *Hubs) PublishFunc(tenant id.TenantID, run id.RunID, last int64, terminal bool, frames func() []*event.Frame) {
	hs.publish(key{tenant, run}, last, terminal, frames)
}

func (hs *Hubs) publish(k key, last int64, terminal bool, frames func() []*event.Frame) {
	h := hs.hold(k, !terminal)
	if h == nil {
		return // it ended unseen
	}
	defer h.release()
	if h.mirror != nil {
		h.unmirror() // the run has come here
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
		h.yield() // the run moves away: this was the last that is said here
	}
}

// mine reports whether a run lives on this node, because the node owns it or because
// it finishes what it began. A hub without a mirror is owned
// only while that is so: whoever publishes looks after it has spoken, and each
// new member list is followed by a review.
func (hs *Hubs) mine(k key) bool {
	return hs.peers == nil || hs.peers.Owner(k.run.Shard()) == hs.self || hs.finishes(k)
}

// finishes reports whether a run is still at work on this node, whoever owns it.
func (hs *Hubs) finishes(k key) bool {
	return hs.holds != nil && hs.holds(cluster.Address{Kind: msg.KindRun, Tenant: k.tenant, ID: k.run.UUID})
}

// reach says that the publisher has come to the fact with the number last.
func (h *hub) reach(last int64) {
	h.own()
	if at := (event.Pos{Seq: last}); h.pos.Before(at) {
		h.pos = at
	}
	if h.live != nil && h.live.seq < last {
		h.live = nil // what comes after a step says that it is over
	}
}

// own says that somebody publishes.
func (h *hub) own() {
	left := h.all.left[h.key.run.Shard()].Load()
	if !h.owned || h.mirror == nil && h.left != left {
		h.owned, h.quiet, h.left = true, false, left
		h.seen = event.Pos{} // it is not doubted before it had its time
		h.term++
	}
}

// end says that the terminal frame was sent. A reader that is catching up has it
// in its queue, or finds it among the facts.
func (h *hub) end() {
	h.closeOutlet()
	h.owned, h.gone = false, true
}

// rest says that nobody publishes now.
func (h *hub) rest() {
	h.owned, h.live = false, nil
	if len(h.readers) > 0 {
		h.all.watch(h.key)
		h.all.kick() // a commit whose outcome the owner did not hear may stand
	}
}

// Abandon says that the caller publishes no more for the run, although it has
// not ended: its activation rests, has failed or moves. Readers wait for the
// next one, or for what the facts will say.
func (hs *Hubs) Abandon(tenant id.TenantID, run id.RunID) {
	h := hs.hold(key{tenant, run}, false)
	if h == nil {
		return
	}
	defer h.release()
	if h.mirror != nil {
		return // somebody else does
	}
	h.yield()
}

// yield says that nobody publishes here now; the lock is held.
func (h *hub) yield() {
	h.rest()
	if h.outlet != nil {
		h.feedRested()
	}
	h.want() // the run may go on elsewhere
}

// Watched reports whether somebody reads the run, on this node or through it.
func (hs *Hubs) Watched(tenant id.TenantID, run id.RunID) bool {
	h := hs.hold(key{tenant, run}, false)
	if h == nil {
		return false
	}
	defer h.release()
	return len(h.readers) > 0 || h.outlet != nil
}

// Begin opens the live text of a model's step that was committed with the number
// seq, after its step.started was published. The text ends with the next
// published frame, the next Begin or Abandon; what is written later is dropped.
// relayed says that readers of the embed relay are sent the text too.
func (hs *Hubs) Begin(tenant id.TenantID, run id.RunID, seq int64, idx int, relayed bool) model.Sink {
	h := hs.hold(key{tenant, run}, true)
	defer h.release()
	l := &speech{hub: h, seq: seq, idx: idx, relayed: relayed}
	if h.pos.Seq > seq || !hs.mine(h.key) {
		return l // the run has gone on, or away: nobody hears it
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

// speech takes the text of one unfinished step.
type speech struct {
	hub     *hub
	seq     int64
	idx     int
	relayed bool // the relay is sent the text; false, too, where nobody has said

	// Guarded by hub.mu. said only grows, so that parts of it can be shared;
	// segments are the byte lengths of thinking and text by turns.
	said     []byte
	segments []int32
}

// Text writes what the model answers.
func (l *speech) Text(s string) { l.say(event.LLMDelta, s) }

// Thinking writes what the model thinks.
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

// job is one worker's share of a frame.
type job struct {
	hub     *hub
	readers []*Reader
	frame   *event.Frame
	done    *sync.WaitGroup
}

// split shares the readers among the workers and the caller, who holds the lock
// for all of them.
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

// add and remove keep each reader's place, so that leaving costs the same
// however many there are. The lock is held.
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
