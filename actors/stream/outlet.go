package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
)

// Limits of one answer to Watch and of the nodes that one run feeds.
const (
	maxSaid     = 4 << 20
	maxWatchers = 64
)

// outlet is a hub's feed to other nodes that read the run. Its fields are guarded by the
// hub's lock.
type outlet struct {
	feed     uint64
	number   uint64 // number of the last message
	watchers []watcher
}

// watcher is a node that receives the feed until it ends its watch or stops renewing it.
type watcher struct {
	member id.MemberID
	until  time.Time
}

var errStopped = errors.New("stream: this node is stopping")

var errNoCarrier = errors.New("stream: this node's carrier is down")

// ServeWatch answers a member's Watch.
func (hs *Hubs) ServeWatch(_ context.Context, from id.MemberID, m any) (any, error) {
	w, ok := m.(Watch)
	if !ok {
		return nil, fmt.Errorf("stream: %T is not a Watch", m)
	}
	for _, f := range w.End {
		hs.endWatch(f, from)
	}
	var out Watched
	if len(w.Begin) > 0 && (hs.carrier == nil || !hs.carrier.Up()) {
		return nil, errNoCarrier
	}
	said := 0
	for _, r := range w.Begin {
		s, err := hs.beginWatch(key{r.Tenant, r.Run}, from)
		if err != nil {
			return nil, err
		}
		out.Begun = append(out.Begun, s)
		if s.Live != nil {
			said += len(s.Live.Said)
		}
		if said > maxSaid {
			break
		}
	}
	for _, f := range w.Renew {
		out.Renewed = append(out.Renewed, hs.renewWatch(f, from))
	}
	return out, nil
}

// beginWatch feeds a member from now on and returns a snapshot of the run's hub. A run
// without a publisher here gets a hub too, since one may begin later.
func (hs *Hubs) beginWatch(k key, from id.MemberID) (Snapshot, error) {
	h := hs.hold(k, true)
	defer h.release()
	if h.outlet == nil {
		o := &outlet{feed: rand.Uint64() | 1} // never 0
		if !hs.shelveOutlet(o.feed, h) {
			return Snapshot{}, errStopped
		}
		h.outlet = o
	}
	o := h.outlet
	if !o.renew(from, time.Now().Add(hs.forget)) {
		if len(o.watchers) == maxWatchers {
			return Snapshot{}, errors.New("stream: the run is watched by too many nodes")
		}
		o.watchers = append(o.watchers, watcher{from, time.Now().Add(hs.forget)})
		watchesIn.Inc()
	}
	s := Snapshot{Feed: o.feed, Number: o.number}
	if h.owned && h.mirror == nil { // it does not pass on what it mirrors itself
		s.Owned, s.Pos = true, h.pos
		if l := h.live; l != nil {
			s.Live = &LiveStep{Seq: l.seq, Idx: l.idx, Said: l.said[:len(l.said):len(l.said)], Segments: append([]int32(nil), l.segments...), Relayed: l.relayed}
		}
	}
	return s, nil
}

func (o *outlet) renew(member id.MemberID, until time.Time) bool {
	for i := range o.watchers {
		if o.watchers[i].member == member {
			o.watchers[i].until = until
			return true
		}
	}
	return false
}

// fed returns the hub of a feed with its lock held, or nil.
func (hs *Hubs) fed(feed uint64) *hub {
	hs.mu.Lock()
	h := hs.outlets[feed]
	hs.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if h.outlet == nil || h.outlet.feed != feed {
		h.mu.Unlock()
		return nil
	}
	return h
}

func (hs *Hubs) renewWatch(feed uint64, from id.MemberID) uint64 {
	h := hs.fed(feed)
	if h == nil {
		return 0
	}
	defer h.release()
	if !h.outlet.renew(from, time.Now().Add(hs.forget)) {
		return 0
	}
	return h.outlet.number + 1
}

func (hs *Hubs) endWatch(feed uint64, from id.MemberID) {
	if h := hs.fed(feed); h != nil {
		h.dropWatchers(func(w watcher) bool { return w.member == from })
		h.release()
	}
}

// expireWatches ends the watches that were not renewed.
func (hs *Hubs) expireWatches(now time.Time) {
	hs.mu.Lock()
	feeds := make([]uint64, 0, len(hs.outlets))
	for f := range hs.outlets {
		feeds = append(feeds, f)
	}
	hs.mu.Unlock()
	for _, f := range feeds {
		if h := hs.fed(f); h != nil {
			h.dropWatchers(func(w watcher) bool { return w.until.Before(now) })
			h.release()
		}
	}
}

// dropWatchers ends the matching watches, and with the last one the feed.
func (h *hub) dropWatchers(ends func(watcher) bool) {
	o := h.outlet
	kept := o.watchers[:0]
	for _, w := range o.watchers {
		if !ends(w) {
			kept = append(kept, w)
		}
	}
	watchesIn.Sub(float64(len(o.watchers) - len(kept)))
	o.watchers = kept
	if len(kept) == 0 {
		h.all.unshelveOutlet(o.feed)
		h.outlet = nil
	}
}

// closeOutlet ends the feed of a run that has ended.
func (h *hub) closeOutlet() {
	if h.outlet != nil {
		h.dropWatchers(func(watcher) bool { return true })
	}
}

// shelveOutlet and unshelveOutlet are called with the hub's lock held.
func (hs *Hubs) shelveOutlet(feed uint64, h *hub) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.stopped {
		return false
	}
	hs.outlets[feed] = h
	return true
}

func (hs *Hubs) unshelveOutlet(feed uint64) {
	hs.mu.Lock()
	delete(hs.outlets, feed)
	hs.mu.Unlock()
}

// All functions below require the hub's lock and a non-nil h.outlet.

// feedFrame, feedBegan and feedRested send an event to the watching nodes. The message is
// made once for all of them.
func (h *hub) feedFrame(f *event.Frame) {
	m := h.message(opFrame)
	h.feed(f.Carry(m.appendHead(make([]byte, 0, headLen+16+len(f.Bytes())))))
}

func (h *hub) feedBegan(l *speech) {
	m := h.message(opBegan)
	h.feed(appendBegan(m.appendHead(nil), l))
}

func (h *hub) feedRested() {
	m := h.message(opRested)
	h.feed(m.appendHead(nil))
}

// message returns the header of the next message.
func (h *hub) message(o op) message {
	h.outlet.number++
	return message{op: o, key: h.key, feed: h.outlet.feed, number: h.outlet.number}
}

func (h *hub) feed(b []byte) {
	if len(b) > maxMessage {
		m := message{op: opLeftOut, key: h.key, feed: h.outlet.feed, number: h.outlet.number}
		b = m.appendHead(nil)
	}
	for _, w := range h.outlet.watchers {
		h.all.carrier.Send(w.member, b)
	}
	feedMessages.Add(float64(len(h.outlet.watchers)))
	feedBytes.Add(float64(len(b) * len(h.outlet.watchers)))
}
