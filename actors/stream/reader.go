package stream

import (
	"context"
	"math"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// maxQueue limits the frames queued for a Reader that is catching up. Past it the queue is
// dropped and the Reader catches up once more.
const maxQueue = 256

// Conn is the connection of a Reader.
type Conn interface {
	// Send and SendAll never block; false means that the connection has ended.
	Send(*event.Frame) bool
	SendAll([]*event.Frame) bool
	// Backfill is SendAll, but waits for a slow client. It may clear the slice. Only Attach
	// calls it.
	Backfill([]*event.Frame) bool
	// Close ends the connection after the frames already sent, Cut at once.
	Close()
	Cut()
}

// relayConn is the connection of an embed relay client. It gets every frame and forwards
// those that the relay shows. So the Reader moves from position to position without gaps, and
// every path to the client goes through this type.
type relayConn struct{ Conn }

func (c relayConn) Send(f *event.Frame) bool {
	if f = f.Relay(); f == nil {
		return true
	}
	return c.Conn.Send(f)
}

func (c relayConn) SendAll(frames []*event.Frame) bool { return sendRelayed(frames, c.Conn.SendAll) }

func (c relayConn) Backfill(frames []*event.Frame) bool { return sendRelayed(frames, c.Conn.Backfill) }

func sendRelayed(frames []*event.Frame, send func([]*event.Frame) bool) bool {
	var relayed []*event.Frame
	for _, f := range frames {
		if f = f.Relay(); f != nil {
			relayed = append(relayed, f)
		}
	}
	return len(relayed) == 0 || send(relayed)
}

// state of a Reader.
type state uint8

const (
	catching state = iota // frames of the hub wait in the queue
	live                  // frames of the hub are sent
	over                  // nothing more is sent
)

// Reader is one open event stream and the actor that controls its life.
type Reader struct {
	all *Hubs
	hub *hub
	id  id.UUID
	// Used only between Open and Attach.
	facts *event.Facts

	// Guarded by hub.mu.
	conn   Conn         // nil before Attach
	cursor event.Cursor // while catching up: what the client still misses from the facts
	pos    event.Pos    // everything up to here was sent, or need not be
	mark   *mark        // set while catching up
	place  int          // among the hub's readers
	held   int64        // bytes in Hubs.replays until the client has caught up
	term   uint32       // the publisher since which nothing can have been missed; 0: none
	state  state
	// open means that pos may lie inside a step with more text to come.
	open bool
	// counted means that it is in the count of open readers.
	counted bool
	// relay, which never changes, means that the client is one of the embed relay: conn is a
	// relayConn.
	relay bool
}

// mark is the position at which a catching-up Reader switches from facts to its hub's frames.
type mark struct {
	known bool      // the hub has an owner, which publishes everything after at
	at    event.Pos // frames up to this position are not queued

	// The unfinished step's text so far; said is nil if there is none.
	seq      int64
	idx      int
	said     []byte
	segments []int32
	relayed  bool

	queue    []*event.Frame
	term     uint32 // of the publisher that filled it
	overflow bool
}

// Messages to a Reader.
type (
	opened struct{}            // starts the actor
	behind struct{}            // frames were missed
	missed struct{ err error } // the facts could not be read
	gone   struct{}            // the connection has ended
)

// Open starts reading a run for a client at cursor c. It reads the run's facts first, so that
// a run that the tenant does not have is NOT_FOUND. The error is RATE_LIMITED while clients of
// the tenant have not read too much of other replays. The caller must call Gone on the
// returned Reader, after Attach if that is called.
func (hs *Hubs) Open(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*Reader, error) {
	return hs.open(ctx, tenant, run, c, false)
}

// OpenRelay is Open for a client of the embed relay (service.md, Embed relay). It replays
// everything relayed of the run; Since omits the steps up to it (event.ReplayRelay).
func (hs *Hubs) OpenRelay(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor) (*Reader, error) {
	c.Full = true
	return hs.open(ctx, tenant, run, c, true)
}

func (hs *Hubs) open(ctx context.Context, tenant id.TenantID, run id.RunID, c event.Cursor, relay bool) (*Reader, error) {
	r := &Reader{all: hs, cursor: c, id: id.NewAnywhere(), relay: relay}
	h := hs.hold(key{tenant, run}, true)
	r.hub = h
	h.add(r)
	r.begin()
	h.want()
	asked := h.mirror
	if asked == nil || !asked.asking {
		asked = nil
	}
	h.mu.Unlock() // it has a reader and therefore stays
	if asked != nil {
		hs.await(ctx, r, asked)
	}
	facts, err := hs.read(ctx, r.hub.key, c)
	if err != nil {
		r.leave()
		return nil, err
	}
	h.mu.Lock()
	n := r.mark.weight(facts)
	if err := hs.replays.take(tenant, n); err != nil {
		h.mu.Unlock()
		r.leave()
		return nil, err
	}
	r.facts, r.cursor, r.counted, r.held = facts, c.Within(facts), true, n
	h.mu.Unlock()
	readersOpen.Inc()
	hs.adopt(r)
	hs.node.Tell(r.address(), opened{})
	return r, nil
}

// await gives the node that publishes the run a moment to send its position, so that the
// facts read next meet it.
func (hs *Hubs) await(ctx context.Context, r *Reader, m *mirror) {
	late := time.NewTimer(hs.join)
	defer late.Stop()
	select {
	case <-m.ready:
	case <-late.C:
		return
	case <-ctx.Done():
		return
	}
	r.hub.mu.Lock()
	if r.state == catching {
		r.begin()
	}
	r.hub.mu.Unlock()
}

func (r *Reader) address() cluster.Address {
	return cluster.Address{Kind: msg.KindStream, Tenant: r.hub.key.tenant, ID: r.id}
}

// Attach sends the client what it has missed, and live frames from then on. It is called
// once, and returns when the client has caught up.
func (r *Reader) Attach(c Conn) {
	if r.relay {
		c = relayConn{c}
	}
	r.hub.mu.Lock()
	r.conn = c
	if r.state == over { // the node is stopping
		r.hub.mu.Unlock()
		c.Cut()
		return
	}
	r.hub.mu.Unlock()
	defer r.caughtUp()
	facts := r.facts
	r.facts = nil
	for facts != nil {
		again, ok := r.catchUp(facts, c.Backfill)
		if !again || !ok {
			return
		}
		var err error
		if facts, err = r.all.read(r.all.life, r.hub.key, r.cursor); err != nil {
			r.all.node.Tell(r.address(), missed{err})
			return
		}
		r.hub.mu.Lock()
		if r.mark != nil {
			r.hold(r.mark.weight(facts))
		}
		r.hub.mu.Unlock()
	}
}

// caughtUp records that the client has taken the replay.
func (r *Reader) caughtUp() {
	r.hub.mu.Lock()
	r.hold(0)
	r.hub.mu.Unlock()
}

// refill is Attach for a Reader that was live before. It does not wait for a slow client: a
// client without room for the missed frames is cut.
func (r *Reader) refill() {
	for {
		r.hub.mu.Lock()
		cursor, conn, stop := r.cursor, r.conn, r.state != catching
		r.hub.mu.Unlock()
		if stop {
			return
		}
		var facts *event.Facts
		var err error
		if cursor.Full {
			facts, err = r.all.readShared(r.hub, cursor.After)
		} else {
			facts, err = r.all.read(r.all.life, r.hub.key, cursor)
		}
		if err != nil {
			r.all.node.Tell(r.address(), missed{err})
			return
		}
		if again, ok := r.catchUp(facts, conn.SendAll); !again || !ok {
			return
		}
	}
}

// Gone reports that the connection has ended. The Reader leaves its hub and memory at once.
func (r *Reader) Gone() {
	if !r.all.node.Send(r.address(), gone{}) {
		r.Stopped() // its actor never began, or has ended
	}
}

// Receive controls the life of the Reader.
func (r *Reader) Receive(c cluster.Context, m any) {
	switch m := m.(type) {
	case behind:
		r.all.spawn(r.refill)
	case missed:
		// The database is down: the client keeps its connection and gets the missed frames
		// when it is back.
		r.all.log.Warn().Err(m.err).Stringer("tenant", r.hub.key.tenant).Stringer("run", r.hub.key.run).Msg("reader cannot catch up yet")
		ref := c.Ref()
		r.all.node.After(r.all.retry, func() { ref.Send(behind{}) })
	case gone:
		r.leave()
		c.Stop()
	}
}

// Stopped cuts a connection that is still open: a stopping node ends its streams.
func (r *Reader) Stopped() {
	r.all.disown(r)
	if conn := r.leave(); conn != nil {
		conn.Cut()
	}
}

// leave removes the Reader from its hub and returns its connection.
func (r *Reader) leave() Conn {
	h := r.hub
	h.mu.Lock()
	if r.counted {
		readersOpen.Dec()
		r.counted = false
	}
	r.state, r.mark = over, nil
	r.hold(0)
	h.remove(r)
	conn := r.conn
	h.release()
	return conn
}

// begin makes the Reader catch up from its position; the hub's lock is held.
func (r *Reader) begin() {
	h := r.hub
	m := &mark{known: h.owned, at: h.pos, term: h.term}
	if l := h.live; l != nil && h.owned {
		m.seq, m.idx = l.seq, l.idx
		m.said = l.said[:len(l.said):len(l.said)]
		m.segments = append(m.segments, l.segments...)
		m.relayed = l.relayed
	}
	r.mark, r.state = m, catching
	if !h.owned && !h.gone {
		r.all.watch(h.key)
	}
}

// take receives each frame of the hub, with the hub's lock held.
func (r *Reader) take(f *event.Frame) {
	switch r.state {
	case catching:
		m := r.mark
		if !m.known && len(m.queue) == 0 {
			m.term = r.hub.term
		}
		if len(m.queue) == maxQueue || m.term != r.hub.term {
			m.queue, m.overflow = nil, true
		}
		if !m.overflow {
			m.queue = append(m.queue, f)
		}
	case live:
		next, ok := r.next(f, r.hub.term)
		switch {
		case !ok:
			r.fall()
		case next != nil && !r.conn.Send(next):
			r.finish()
		case f.Type.Terminal():
			r.conn.Close()
			r.finish()
		}
	}
}

// next returns the part of f, published in a term, that the Reader has not sent, nil for
// nothing. ok is false if something before f is missing, or may be. Text has no number of its
// own: if another publisher spoke the step, numbers do not reveal a missing end.
func (r *Reader) next(f *event.Frame, term uint32) (next *event.Frame, ok bool) {
	if !r.pos.Before(f.Pos) {
		if r.pos == f.Pos {
			r.term = term
		}
		return nil, true
	}
	start := f.Pos.Offset - int64(len(f.Text))
	switch {
	case f.Pos.Seq > r.pos.Seq+1, f.Pos.Seq > r.pos.Seq && f.Text != "", f.Pos.Seq == r.pos.Seq && start > r.pos.Offset:
		return nil, false
	case f.Pos.Seq > r.pos.Seq && r.open && r.term != term:
		return nil, false
	case f.Pos.Seq == r.pos.Seq && start < r.pos.Offset:
		f = f.After(r.pos)
	}
	r.pos, r.term = f.Pos, term
	r.open = f.Text != "" || f.Type == event.StepStarted
	return f, true
}

// fall makes a live Reader catch up; the hub's lock is held.
func (r *Reader) fall() {
	r.cursor = r.here()
	r.begin()
	refills.Inc()
	if !r.all.node.Send(r.address(), behind{}) {
		r.conn.Cut() // its actor has ended: end the connection too
		r.finish()
	}
}

// here returns the cursor of a client that has everything up to r.pos.
func (r *Reader) here() event.Cursor { return event.Cursor{Full: true, Since: -1, After: r.pos} }

// finish ends the sending; the hub's lock is held.
func (r *Reader) finish() {
	r.state, r.mark = over, nil
	r.hub.stale.Store(true)
}

// catchUp sends the Reader what it misses, from the facts, the hub's text and the queue. ok
// is false if its connection has ended. again means that its queue overflowed, or that the
// facts were older than the queue: the caller must read the facts again.
func (r *Reader) catchUp(facts *event.Facts, send func([]*event.Frame) bool) (again, ok bool) {
	h := r.hub
	h.mu.Lock()
	m := r.mark
	if r.state != catching {
		h.mu.Unlock()
		return false, false
	}
	ended := facts.Status.Terminal() && !m.known
	var first *event.Frame
	if len(m.queue) > 0 {
		first = m.queue[0]
	}
	if first != nil || m.overflow {
		ended = false // a new publisher will publish the end
	}
	if !m.known && (m.overflow || first != nil && first.Pos.Seq > facts.Seq+1) {
		// There is a publisher by now: take a mark.
		r.begin()
		h.mu.Unlock()
		return true, true
	}
	cursor := r.cursor
	h.mu.Unlock()

	frames, pos := m.owed(facts, cursor, first, r.relay)
	if n := len(frames); n > 0 && frames[n-1].Type.Terminal() {
		ended = true // it fell behind at the terminal frame itself
	}
	if len(frames) > 0 && !send(frames) {
		h.mu.Lock()
		r.finish()
		h.mu.Unlock()
		return false, false
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if r.state != catching || r.mark != m {
		return false, false
	}
	r.pos, r.term, r.open = pos, 0, pos.Offset != math.MaxInt64
	if m.known && pos == m.at { // otherwise the client has received more than this publisher has published
		r.term = m.term
	}
	switch {
	case ended:
		r.conn.Close()
		r.finish()
		return false, true
	case m.overflow:
		r.cursor = r.here()
		r.begin()
		return true, true
	}
	late := m.queue[:0]
	for _, f := range m.queue {
		next, ok := r.next(f, m.term)
		if !ok {
			r.cursor = r.here()
			r.begin()
			again = true
			break
		}
		if next != nil {
			late = append(late, next)
		}
		ended = f.Type.Terminal()
	}
	switch {
	case len(late) > 0 && !r.conn.SendAll(late):
		r.finish()
		return false, false
	case ended:
		r.conn.Close()
		r.finish()
		return false, true
	}
	if !again {
		r.mark, r.state = nil, live
	}
	return again, true
}

// owed returns the frames from the facts and the unfinished step that a Reader with cursor c
// has not received, and the position after them. first is the first frame of its queue.
func (m *mark) owed(facts *event.Facts, c event.Cursor, first *event.Frame, relay bool) ([]*event.Frame, event.Pos) {
	replay, speak := event.Replay, m.spoken
	if relay {
		replay, speak = event.ReplayRelay, m.relayedText
	}
	replayed := replay(facts, c)
	frames := replayed[:0]
	pos := m.at
	if !m.known {
		pos = rest(facts)
		if first != nil && !pos.Before(first.Pos) {
			pos = event.Pos{Seq: first.Pos.Seq - 1, Offset: math.MaxInt64}
			if first.Text != "" {
				pos = event.Pos{Seq: first.Pos.Seq, Offset: first.Pos.Offset - int64(len(first.Text))}
			}
		}
	}
	spoken := speak(c)
	for _, f := range replayed {
		switch {
		case m.known && m.at.Before(f.Pos), !m.known && first != nil && !f.Pos.Before(first.Pos):
			continue // it is or will be in the queue
		case m.said != nil && f.Text != "" && f.Pos.Seq == m.seq:
			continue // the step has ended since; the hub's text is the part before the mark
		}
		frames = append(frames, f)
	}
	frames = append(frames, spoken...) // it has the last number: it sorts after all others
	if pos.Before(c.After) {
		pos = c.After // the client has more than this hub has published yet
	}
	return frames, pos
}

// rest returns the position of a run without a publisher: after all facts, but before further
// text of an open step.
func rest(f *event.Facts) event.Pos {
	pos := event.Pos{Seq: f.Seq, Offset: math.MaxInt64}
	for _, s := range f.Steps {
		if s.BeganSeq == f.Seq && s.Status == lifecycle.StepRunning {
			pos.Offset = 0
		}
	}
	return pos
}

// spoken returns the unfinished step for a client with cursor c. If c lies in the step or
// after it, it returns the parts after c's position, else the text as one frame, and the
// thinking too where the text has several parts.
func (m *mark) spoken(c event.Cursor) []*event.Frame {
	if len(m.said) == 0 || !c.Exact() && int64(m.idx) <= c.Since || c.After.Seq > m.seq {
		return nil
	}
	var parts []*event.Frame
	pos := event.Pos{Seq: m.seq}
	texts := 0
	said := m.said
	for i, n := range m.segments {
		if n == 0 {
			continue
		}
		t := event.LLMThinking
		if i%2 == 1 {
			t = event.LLMDelta
			texts++
		}
		pos.Offset += int64(n)
		f := event.Delta(t, pos, m.idx, string(said[:n]))
		if m.relayed {
			f.AllowRelay()
		}
		if f = f.After(c.After); f != nil && f.Text != "" {
			parts = append(parts, f)
		}
		said = said[n:]
	}
	if c.Exact() || texts < 2 {
		return parts
	}
	// Thinking and text alternated. What came first goes first, at the position of its first
	// part: a client cut between the two gets some of it again when it resumes, and misses
	// nothing.
	var first, second []byte
	for _, f := range parts {
		if f.Type == parts[0].Type {
			first = append(first, f.Text...)
		} else {
			second = append(second, f.Text...)
		}
	}
	return []*event.Frame{event.Delta(parts[0].Type, parts[0].Pos, m.idx, string(first)), event.Delta(parts[1].Type, pos, m.idx, string(second))}
}

// relayedText is spoken for a Reader of the relay: its missing text as one frame, unless the
// text is withheld.
func (m *mark) relayedText(c event.Cursor) []*event.Frame {
	if !m.relayed || c.After == (event.Pos{}) && int64(m.idx) <= c.Since {
		return nil
	}
	var text []byte
	var at event.Pos
	for _, f := range m.spoken(c) {
		if f = f.Relay(); f != nil {
			text, at = append(text, f.Text...), f.Pos
		}
	}
	if len(text) == 0 {
		return nil
	}
	return []*event.Frame{event.Delta(event.LLMDelta, at, m.idx, string(text)).AllowRelay()}
}
