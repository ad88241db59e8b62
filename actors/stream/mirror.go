package stream

import (
	"time"

	"agentsvc/schemas/event"
)

// maxEarly limits the messages that wait for the snapshot which precedes them.
const maxEarly = 1024

// joinWait is how long a Reader waits for its run's mirror before it starts with the
// committed facts.
const joinWait = 250 * time.Millisecond

// mirror connects a hub to another node's feed: while it stands, the hub acts as if the
// publisher were here. All fields but hub, link and ready are guarded by the hub's lock.
type mirror struct {
	hub   *hub
	link  *link
	ready chan struct{} // closed when the request has ended

	asking bool // the snapshot is on its way; messages wait in early
	early  []message
	missed bool // early overflowed

	feed   uint64 // does not change once the mirror stands
	number uint64 // number of the last message
	owed   uint64 // the other node's number at the last renewal
	had    uint64 // the number received by then
	since  time.Time
}

// want requests a mirror from the run's owner if one is useful; the lock is held. Requests
// are repeated after a pause, which grows while mirrors do not last.
func (h *hub) want() {
	hs := h.all
	if hs.carrier == nil || h.owned || h.mirror != nil || h.gone || len(h.readers) == 0 || !hs.carrier.Up() {
		return
	}
	to := hs.peers.Owner(h.key.run.Shard())
	now := time.Now()
	if to == hs.self || now.Sub(h.asked) < h.pause {
		return
	}
	if !h.asked.IsZero() {
		rewatches.Inc()
	}
	h.asked = now
	h.mirror = &mirror{hub: h, asking: true, ready: make(chan struct{}), since: now}
	hs.ask(to, h.mirror)
}

// unmirror ends the mirror and the speech that came through it; the lock is held.
func (h *hub) unmirror() {
	m := h.mirror
	h.mirror = nil
	if m.asking {
		m.done()
		return // install finds that it is no longer wanted
	}
	h.owned, h.live = false, nil
	m.link.forget(m)
	m.link.stopFeed(m.feed)
}

// wanted reports whether the hub still waits for m.
func (m *mirror) wanted() bool {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	return m.hub.mirror == m
}

// done marks the request as ended.
func (m *mirror) done() {
	m.asking, m.early = false, nil
	close(m.ready)
}

// lose drops the mirror: its messages have a gap, or may have one.
func (m *mirror) lose() {
	m.hub.mu.Lock()
	defer m.hub.release()
	m.fail()
}

// fail is lose with the lock held.
func (m *mirror) fail() {
	h := m.hub
	if h.mirror != m {
		return
	}
	gaps.Inc()
	h.backOff(m)
	h.unmirror()
	h.rest()
}

// backOff delays the next mirror; a mirror that stood for long does not count as a failure.
func (h *hub) backOff(m *mirror) {
	every := h.all.every
	if time.Since(m.since) > h.all.forget {
		h.pause = every
		return
	}
	h.pause = min(max(2*h.pause, every), 4*every)
}

// refused records that no snapshot is available now.
func (m *mirror) refused() {
	h := m.hub
	h.mu.Lock()
	defer h.release()
	if h.mirror == m {
		h.backOff(m)
		h.unmirror()
	}
}

// install starts mirroring from a snapshot.
func (m *mirror) install(s Snapshot) {
	h := m.hub
	h.mu.Lock()
	defer h.release()
	if h.mirror != m {
		m.link.stopFeed(s.Feed) // it is no longer wanted
		return
	}
	early, missed := m.early, m.missed
	m.feed, m.number = s.Feed, s.Number
	m.link.attach(m)
	if s.Owned {
		h.own()
		h.pos, h.live = s.Pos, nil
		if l := s.Live; l != nil {
			h.live = &speech{hub: h, seq: l.Seq, idx: l.Idx, said: l.Said, segments: l.Segments, relayed: l.Relayed}
		}
		h.lead()
	}
	m.done()
	for _, e := range early {
		h.follow(e)
	}
	if missed {
		m.fail()
	}
}

// aim drops a mirror whose node is no longer the run's owner, and requests one from the
// owner; the lock is held. A former owner that still publishes is followed until it rests: it
// is finishing its work.
func (h *hub) aim() {
	m := h.mirror
	switch {
	case m == nil, h.all.peers.Owner(h.key.run.Shard()) == m.link.to:
		return
	case !m.asking && h.owned && h.all.lives != nil && h.all.lives(m.link.to):
		return
	}
	stood := !m.asking
	h.unmirror()
	if stood {
		h.rest()
	}
	h.pause = 0
	h.want()
}

// lead brings existing readers to the position of a publisher whose earlier frames they have
// not received.
func (h *hub) lead() {
	var parts []*event.Frame // the missing part of the live step for a reader at from
	var from event.Pos
	for _, r := range h.readers {
		switch {
		case r.state == catching:
			r.mark.queue, r.mark.overflow = nil, true // its mark does not apply to this publisher
		case r.state != live:
		case r.pos == h.pos:
			r.term = h.term
		case h.pos.Before(r.pos): // this publisher is behind the reader: it may have missed the rest
		case h.live == nil || r.pos.Seq != h.live.seq:
			r.fall()
		default:
			if parts == nil || from != r.pos {
				from = r.pos
				now := mark{seq: h.live.seq, idx: h.live.idx, said: h.live.said, segments: h.live.segments, relayed: h.live.relayed}
				parts = now.spoken(r.here())
			}
			r.pos, r.term, r.open = h.pos, h.term, true
			if len(parts) > 0 && !r.conn.SendAll(parts) {
				r.finish()
			}
		}
	}
}

// renewed handles the answer to a renewal: the feed's number plus one, or 0 if the feed has
// ended. It reports whether messages are in flight or lost.
func (m *mirror) renewed(next uint64) (behind bool) {
	h := m.hub
	h.mu.Lock()
	defer h.release()
	switch {
	case h.mirror != m:
	case next == 0:
		m.fail()
	default:
		m.owed, m.had = next-1, m.number
		return m.number < m.owed
	}
	return false
}

// overdue drops the mirror if none of the expected messages has arrived. If some have, the
// next renewal checks again: a slow node has lost nothing.
func (m *mirror) overdue() {
	h := m.hub
	h.mu.Lock()
	defer h.release()
	if h.mirror == m && m.number < m.owed && m.number == m.had {
		m.fail()
	}
}

// take passes a message to its hub.
func (hs *Hubs) take(b []byte) {
	m, ok := readMessage(b)
	if !ok {
		strays.Inc() // of another version: its number will be missing
		return
	}
	h := hs.hold(m.key, false)
	if h == nil {
		strays.Inc()
		return
	}
	defer h.release()
	switch {
	case h.mirror == nil:
		strays.Inc()
	case !h.mirror.asking:
		h.follow(m)
	case len(h.mirror.early) < maxEarly:
		h.mirror.early = append(h.mirror.early, m)
	default:
		h.mirror.missed = true
	}
}

// follow applies a message of the publisher's hub; the lock is held.
func (h *hub) follow(m message) {
	own := h.mirror
	switch {
	case own == nil || m.feed != own.feed || m.number <= own.number:
		return // of an earlier feed, or a repeat
	case m.number > own.number+1:
		own.fail()
		return
	}
	own.number = m.number
	ok := true
	switch m.op {
	case opFrame:
		ok = h.repeat(m.body)
	case opBegan:
		var l *speech
		if l, ok = readBegan(m.body); ok {
			h.reach(l.seq)
			l.hub, h.live = h, l
		}
	case opRested:
		h.rest()
		h.aim()
	default: // left out, or unknown to this version
		ok = false
	}
	if !ok {
		own.fail()
	}
}

// repeat sends a frame of the publisher to the readers here. ok is false if an earlier frame
// is missing.
func (h *hub) repeat(body []byte) (ok bool) {
	f, err := event.Carried(body)
	if err != nil {
		return false
	}
	if f.Type.Text() {
		l := h.live
		if l == nil || l.seq != f.Pos.Seq || f.Pos.Offset != int64(len(l.said)+len(f.Text)) {
			return false
		}
		l.add(f.Type, f.Text)
		h.pos = f.Pos
		if l.relayed {
			f.AllowRelay()
		}
	} else {
		h.reach(f.Pos.Seq)
	}
	h.send(f)
	if f.Type.Terminal() {
		m := h.mirror
		h.mirror = nil // its feed ended with the run
		m.link.forget(m)
		h.end()
	}
	return true
}
