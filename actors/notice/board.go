package notice

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/feed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// Times and rates (console.md, GET /v1/feed: within 1 s of the commit, one per object and
// 250 ms, beyond 50/s feed.lost).
const (
	maxRate   = 50 // changes of a view in a second
	spacing   = 250 * time.Millisecond
	lostEvery = 500 * time.Millisecond // between two feed.lost of a view
	gather    = 20 * time.Millisecond  // from the first change of a desk to its read
	collect   = 50 * time.Millisecond  // from the first change of an outbox to its call

	watchEvery  = 2 * time.Second
	watchLife   = 10 * time.Second
	readyWait   = time.Second // of a reader for the other nodes
	callTimeout = time.Second
	retryAfter  = 250 * time.Millisecond
	pollEvery   = 5 * time.Second // between two feed.lost while a node does not answer
	readTimeout = 2 * time.Second
)

// Rows reads changed objects.
type Rows interface {
	Changed(ctx context.Context, all []feed.Named) (*feed.Shown, error)
}

// Peers calls the boards of other members.
type Peers interface {
	Call(ctx context.Context, to id.MemberID, service string, m any) (any, error)
}

// Conn is the connection of a Reader. Its methods do not block.
type Conn interface {
	Send(*event.Frame) bool
	SendAll([]*event.Frame) bool
	Cut()
}

// Viewer is the caller to whom a feed is shown.
type Viewer struct {
	Tenant id.TenantID
	User   id.UserID // zero: a key
	Topics Topics
	Role   lifecycle.Role
	// Decides reports whether the viewer may decide an approval.
	Decides func(assignee lifecycle.Role, node *id.NodeID) bool
}

// Board is the changes of one node's tenants.
type Board struct {
	rows  Rows
	peers Peers // nil: a node alone
	log   zerolog.Logger

	wanted sync.Map // id.TenantID to struct{}: read without mu

	life   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // a desk is due earlier than before

	mu       sync.Mutex // guards the fields below
	desks    map[id.TenantID]*desk
	version  uint64        // counts tenants that got a desk
	watches  uint64        // counts the Watches that were sent, to any member
	acked    chan struct{} // closed when a peer has acknowledged
	members  map[id.MemberID]*peer
	watchers map[id.TenantID]map[id.MemberID]struct{}
	stopped  bool
}

// desk is what the readers of one tenant on this node are owed.
type desk struct {
	tenant id.TenantID
	names  *names
	due    time.Time // of the next read; zero: nothing is owed
	last   time.Time // when frames were sent last
	open   int       // readers, attached or not
	// managers counts the times when org nodes may have got other managers.
	managers uint64
	views    map[viewKey]*view
}

// viewKey tells views apart. Members with different managed nodes see different approvals, so
// each user of that role has a view of its own.
type viewKey struct {
	topics Topics
	role   lifecycle.Role
	user   id.UserID
}

// view is readers that see the same.
type view struct {
	Viewer
	readers map[*Reader]struct{}
	sent    []burst // in the last second
	lost    Topics  // owed
	lostAt  time.Time
}

type burst struct {
	at time.Time
	n  int
}

// Reader is one open feed.
type Reader struct {
	b    *Board
	desk *desk
	Viewer
	conn Conn   // nil before Attach
	at   uint64 // desk.managers when its rights were read, or before
	gone bool
}

// New returns a board. peers is nil for a node alone.
func New(rows Rows, peers Peers, log zerolog.Logger) *Board {
	b := &Board{rows: rows, peers: peers, log: log, wake: make(chan struct{}, 1), desks: map[id.TenantID]*desk{}, acked: make(chan struct{}),
		members: map[id.MemberID]*peer{}, watchers: map[id.TenantID]map[id.MemberID]struct{}{}}
	b.life, b.cancel = context.WithCancel(context.Background())
	return b
}

// Start begins the loop that sends frames.
func (b *Board) Start(context.Context) error {
	b.wg.Go(b.loop)
	return nil
}

// Stop ends all loops and waits for them. Readers end with their connections.
func (b *Board) Stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.cancel()
	b.wg.Wait()
}

// Wanted reports whether a reader watches the tenant. It takes no lock.
func (b *Board) Wanted(t id.TenantID) bool {
	_, ok := b.wanted.Load(t)
	return ok
}

// Note tells the readers of the tenant that an object has changed. It does not block.
func (b *Board) Note(t id.TenantID, c msg.Change) {
	if !b.Wanted(t) || topic(c.Kind) == 0 {
		return
	}
	changes.Inc()
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.desks[t]; d != nil {
		b.add(d, func(n *names) { n.add(c) })
	}
	for m := range b.watchers[t] {
		if p := b.members[m]; p != nil {
			p.add(t, c)
		}
	}
}

// add adds changes to a desk; mu is held.
func (b *Board) add(d *desk, put func(*names)) {
	before := d.names.managers
	put(d.names)
	d.managers += uint64(d.names.managers - before)
	now := time.Now()
	b.schedule(d, later(now.Add(gather), d.last.Add(spacing)))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// schedule makes a desk due at the latest at a time; mu is held.
func (b *Board) schedule(d *desk, at time.Time) {
	if !d.due.IsZero() && !at.Before(d.due) {
		return
	}
	d.due = at
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// loseAll makes all readers read everything again; mu is held. With managers, changes of the
// managers of org nodes may have been missed too.
func (b *Board) loseAll(managers bool) {
	for _, d := range b.desks {
		b.add(d, func(n *names) {
			if len(d.views) > 0 { // a reader that is not attached has not read anything but its rights
				n.lose(All)
			}
			if managers {
				n.managers++
			}
		})
	}
}

// Open begins a feed. It returns when all nodes report changes of the tenant to this one, or
// some do not answer: then its reader gets feed.lost until they do. The caller must call Gone.
// Before Attach it sets Decides to what it reads after Open: a reader whose rights may have
// changed since is cut when it attaches.
func (b *Board) Open(ctx context.Context, v Viewer) *Reader {
	r := &Reader{b: b, Viewer: v}
	b.mu.Lock()
	d := b.desks[v.Tenant]
	if d == nil {
		d = &desk{tenant: v.Tenant, names: newNames(), views: map[viewKey]*view{}}
		b.desks[v.Tenant] = d
		b.version++
		b.wanted.Store(v.Tenant, struct{}{})
		for _, p := range b.members {
			p.kick()
		}
	}
	d.open++
	r.desk = d
	version := b.version
	b.mu.Unlock()
	readers.Inc()
	b.await(ctx, version)
	b.mu.Lock()
	r.at = d.managers
	b.mu.Unlock()
	return r
}

// await waits until every member watches for this version, at most readyWait.
func (b *Board) await(ctx context.Context, version uint64) {
	late := time.NewTimer(readyWait)
	defer late.Stop()
	for {
		b.mu.Lock()
		behind := false
		for _, p := range b.members {
			behind = behind || !p.ok || p.acked < version
		}
		acked := b.acked
		b.mu.Unlock()
		if !behind {
			return
		}
		select {
		case <-acked:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		case <-b.life.Done():
			return
		}
	}
}

// Attach sends feed.ready, and frames from then on.
func (r *Reader) Attach(c Conn) {
	r.b.mu.Lock()
	r.conn = c
	if r.outdated() {
		r.b.mu.Unlock()
		c.Cut()
		return
	}
	defer r.b.mu.Unlock()
	k := viewKey{r.Topics, r.Role, id.UserID{}}
	if !r.Role.Satisfies(lifecycle.RoleAdmin) {
		k.user = r.User
	}
	v := r.desk.views[k]
	if v == nil {
		v = &view{readers: map[*Reader]struct{}{}}
		r.desk.views[k] = v
	}
	v.Viewer = r.Viewer // with the latest rights
	v.readers[r] = struct{}{}
	c.Send(ready)
	// A node that does not answer may have changes that are not reported here.
	for _, p := range r.b.members {
		if !p.ok {
			r.b.add(r.desk, func(n *names) { n.lose(All) })
			break
		}
	}
}

// Gone ends the feed.
func (r *Reader) Gone() {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.gone {
		return
	}
	r.gone = true
	readers.Dec()
	for k, v := range r.desk.views {
		if delete(v.readers, r); len(v.readers) == 0 {
			delete(r.desk.views, k)
		}
	}
	if r.desk.open--; r.desk.open > 0 {
		return
	}
	delete(b.desks, r.desk.tenant)
	b.unwant(r.desk.tenant)
	if len(b.desks) == 0 {
		for _, p := range b.members {
			p.ok, p.watched = false, time.Time{} // its watch ends
		}
	}
}

// unwant drops a tenant without readers; mu is held.
func (b *Board) unwant(t id.TenantID) {
	if len(b.watchers[t]) == 0 {
		delete(b.watchers, t)
		if b.desks[t] == nil {
			b.wanted.Delete(t)
		}
	}
}

// outdated reports whether the org nodes that the reader's user manages may have changed since
// its rights were read; mu is held.
func (r *Reader) outdated() bool {
	return r.at != r.desk.managers && !r.Role.Satisfies(lifecycle.RoleAdmin)
}

// cutOutdated ends the feeds of a tenant whose rights may have changed: their clients connect
// again.
func (b *Board) cutOutdated(t id.TenantID) {
	var conns []Conn
	b.mu.Lock()
	if d := b.desks[t]; d != nil {
		for _, v := range d.views {
			for r := range v.readers {
				if r.outdated() {
					conns = append(conns, r.conn)
				}
			}
		}
	}
	b.mu.Unlock()
	for _, c := range conns {
		c.Cut()
	}
}

// loop sends frames as desks come due.
func (b *Board) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := b.flush(time.Now())
		wait := time.Hour
		if !next.IsZero() {
			wait = max(time.Until(next), 0)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.life.Done():
			return
		}
	}
}

// owed is what one desk sends now.
type owed struct {
	desk   *desk
	names  *names
	frames map[Topics][]shown
	lost   Topics
}

// shown is a frame and who may see it.
type shown struct {
	*event.Frame
	may func(v *Viewer) bool
	// taken means that a view that may not see the frame may have seen its object before: it
	// reads again.
	taken bool
}

// flush serves the desks that are due. It returns when the next one is.
func (b *Board) flush(now time.Time) (next time.Time) {
	due := map[id.TenantID]*owed{}
	var all []feed.Named
	b.mu.Lock()
	for t, d := range b.desks {
		if d.due.IsZero() || d.due.After(now) {
			continue
		}
		o := &owed{desk: d, names: d.names, frames: map[Topics][]shown{}, lost: d.names.lost}
		d.names, d.due = newNames(), time.Time{}
		due[t] = o
		for c := range o.names.changed {
			all = append(all, feed.Named{Tenant: t, Change: c})
		}
	}
	b.mu.Unlock()
	if len(all) > 0 {
		b.read(due, all)
	}
	for t, o := range due {
		if o.names.managers > 0 {
			b.cutOutdated(t)
		}
	}
	b.send(due)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.desks {
		if !d.due.IsZero() && (next.IsZero() || d.due.Before(next)) {
			next = d.due
		}
	}
	return next
}

// read reads changed objects and makes their frames. What cannot be read is lost.
func (b *Board) read(due map[id.TenantID]*owed, all []feed.Named) {
	ctx, cancel := context.WithTimeout(b.life, readTimeout)
	defer cancel()
	got, err := b.rows.Changed(ctx, all)
	if err != nil {
		if b.life.Err() == nil {
			b.log.Warn().Err(err).Msg("changes cannot be read for feeds")
		}
		for _, n := range all {
			due[n.Tenant].lost |= topic(n.Kind)
		}
		return
	}
	put := func(t id.TenantID, of Topics, typ event.Type, data any, taken bool, may func(*Viewer) bool) {
		f, err := event.New(typ, event.Pos{}, data)
		if err != nil {
			b.log.Error().Err(err).Msg("a change cannot be encoded")
			return
		}
		due[t].frames[of] = append(due[t].frames[of], shown{f, may, taken})
	}
	for i := range got.Runs {
		put(got.Runs[i].Tenant, Runs, event.RunChanged, &got.Runs[i].RunChange, false, func(*Viewer) bool { return true })
	}
	for i := range got.Approvals {
		a := &got.Approvals[i]
		put(a.Tenant, Approvals, event.ApprovalChanged, &a.ApprovalChange, a.Escalated && a.Status == lifecycle.ApprovalPending, func(v *Viewer) bool { return v.Decides(a.AssigneeRole, a.Node) })
	}
	for i := range got.Resources {
		r := &got.Resources[i]
		put(r.Tenant, Resources, event.ResourceChanged, &r.Change, false, func(v *Viewer) bool { return mayRead(v.Role, r.Kind) })
	}
}

// send sends each view what it may see, within its rate. Sockets are written without the lock.
func (b *Board) send(due map[id.TenantID]*owed) {
	type batch struct {
		conns  []Conn
		frames []*event.Frame
	}
	var batches []batch
	b.mu.Lock()
	now := time.Now()
	for t, o := range due {
		d := o.desk
		if b.desks[t] != d {
			continue
		}
		d.last = now
		for _, v := range d.views {
			out := v.take(o, now)
			if v.lost != 0 {
				b.schedule(d, later(v.lostAt.Add(lostEvery), now.Add(spacing)))
			}
			if len(out) == 0 {
				continue
			}
			bt := batch{frames: out}
			for r := range v.readers {
				bt.conns = append(bt.conns, r.conn)
			}
			batches = append(batches, bt)
		}
		if !d.names.empty() { // noted while the rows were read
			d.due = later(d.due, now.Add(spacing))
		}
	}
	b.mu.Unlock()
	for _, bt := range batches {
		for _, c := range bt.conns {
			c.SendAll(bt.frames)
		}
		frames.Add(float64(len(bt.frames) * len(bt.conns)))
	}
}

// take returns the frames that the view is sent now. mu is held.
func (v *view) take(o *owed, now time.Time) (out []*event.Frame) {
	v.sent = slices.DeleteFunc(v.sent, func(s burst) bool { return now.Sub(s.at) >= time.Second })
	left := maxRate
	for _, s := range v.sent {
		left -= s.n
	}
	n := 0
	for _, t := range topics {
		if v.Topics&t == 0 {
			continue
		}
		if o.lost&t != 0 {
			v.lost |= t
			continue
		}
		var of []*event.Frame
		for _, f := range o.frames[t] {
			switch {
			case f.may(&v.Viewer):
				of = append(of, f.Frame)
			case f.taken:
				v.lost |= t
			}
		}
		if len(of) > left-n {
			v.lost |= t
			continue
		}
		out = append(out, of...)
		n += len(of)
	}
	if n > 0 {
		v.sent = append(v.sent, burst{now, n})
	}
	if v.lost != 0 && now.Sub(v.lostAt) >= lostEvery {
		out = append(out, lostFrames[v.lost])
		lost.Inc()
		v.lost, v.lostAt = 0, now
	}
	return out
}

var (
	ready      = frame(event.FeedReady, struct{}{})
	lostFrames = func() (all [All + 1]*event.Frame) {
		for t := range all {
			all[t] = frame(event.FeedLost, struct {
				Topics []string `json:"topics"`
			}{Topics(t).names()})
		}
		return all
	}()
)

func frame(t event.Type, data any) *event.Frame {
	f, err := event.New(t, event.Pos{}, data)
	if err != nil {
		panic(err) // plain values encode
	}
	return f
}
