package durable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

// Host is one activation: the loop of decide, commit, act around a machine.
type Host[S any] struct {
	k    *hosting[S]
	addr cluster.Address
	ref  cluster.Ref

	row  Loaded[S] // committed; row.Guard.SetEpoch is this activation's epoch
	from origin
	none bool // a read found no row
	busy bool // inside Receive; still set in Stopped after a panic
	goes bool // the activation leaves its node; set for each message
	over bool // it was told to stop
	bell bool // an idle check is scheduled
	born bool // counted in metrics

	reads  int             // questions in progress
	life   context.Context // of the questions; nil before the first
	ending context.CancelFunc

	held   atomic.Bool              // the activation has its row: from is not nowhere
	used   time.Time                // of the last message
	now    time.Time                // of the last decision
	at     time.Time                // of the last decision by this process's monotonic clock
	owed   map[string]*performed[S] // effects that the committed state owes, by key
	ctx    context.Context          // of the effects; nil before the first
	cancel context.CancelFunc
}

// origin is the source of row.
type origin uint8

const (
	nowhere  origin = iota
	seeded          // from a message; unproven until the first commit
	starting        // there is no row yet; the message begins the entity
	known           // read, or proven by a commit of this activation
)

// Messages of the host to itself.
type (
	// result is the result of an effect. It counts only if of is in owed: an effect of another
	// activation, or one that is no longer owed, is not.
	result[S any] struct {
		of  *performed[S]
		msg any
	}
	// again is a told message that failed to commit n times.
	again struct {
		msg any
		n   int
	}
	idleCheck struct{}
)

// Message returns the message to send to the owner if the actor has moved.
func (a again) Message() any { return a.msg }

// The pause before a told message comes again doubles from firstPause to lastPause.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 5 * time.Second
	panicPause = 8 // doublings after a panic
	passPause  = 5 // doublings while another member has the activation
)

// The points after a commit at which a crash test kills the process.
var (
	pointBeforeReply = failpoint.Declare("durable.before_reply")
	pointBeforeAfter = failpoint.Declare("durable.before_after")
	pointBeforeAct   = failpoint.Declare("durable.before_act")
)

// retryAfter is what UNAVAILABLE tells clients.
const retryAfter = time.Second

// errOld reports that the row is newer than a seed or a beginning.
var errOld = errors.New("durable: the row has changed since the message was sent")

// incoming is the message being received.
type incoming struct {
	msg    any
	n      int       // failed commits before
	result bool      // it is the result of an effect; the effect is repeated instead of it
	answer *Answered // the answer to the machine's question on it; nil: none
}

// Receive takes one message through decide, commit, act.
func (h *Host[S]) Receive(c cluster.Context, m any) {
	h.busy = true
	in := incoming{msg: m}
	var of *performed[S] // whose result m is
	switch t := m.(type) {
	case idleCheck:
		h.bell = false
		h.leaveIfIdle(c, h.k.cfg.Now())
		h.busy = false
		return
	case result[S]:
		if h.owed[t.of.key] != t.of {
			h.busy = false
			return
		}
		in.msg, in.result, of = t.msg, true, t.of
	case again:
		in.msg, in.n = t.msg, t.n
	case answered:
		h.reads--
		if in = t.in; t.asked && !c.HasSender() { // the asker has left
			h.leaveIfIdle(c, h.k.cfg.Now())
			h.busy = false
			return
		}
		if t.err != nil {
			h.unread(c, in, t.err)
			h.leaveIfIdle(c, h.k.cfg.Now())
			h.busy = false
			return
		}
	}
	if !h.born {
		h.born, h.ref = true, c.Ref()
		h.k.metrics.activations.Inc()
	}
	h.used = h.k.cfg.Now() // before the reply, so that Idle counts from here
	// Read once for each message: effects that this message begins are performed even if the
	// shard moves meanwhile.
	h.goes = h.k.Finishes != nil && h.k.node.Leaves(h.addr)
	if err := h.run(c, in, in.n == 0 && in.answer == nil); errors.Is(err, errOld) {
		h.drop()
		if err := h.run(c, in, false); err != nil {
			h.fail(c, in, err)
		}
	} else if err != nil {
		h.fail(c, in, err)
	}
	if of != nil && h.goes && h.owed[of.key] == of {
		// The machine left the result to the next activation. That is this one if the shard comes
		// back, and then it performs the effect again.
		delete(h.owed, of.key)
	}
	if !h.over {
		h.leaveIfIdle(c, h.used)
	}
	h.busy = false
}

// finisher is a Host whose kind waits for effects before it leaves its node.
type finisher[S any] struct{ *Host[S] }

var _ cluster.Finisher = finisher[int]{}

// Busy reports whether the activation waits for an effect before it leaves.
func (h finisher[S]) Busy() bool { return h.finishes() }

// Holds reports whether the activation has its row.
func (h finisher[S]) Holds() bool { return h.held.Load() }

func (h *Host[S]) finishes() bool {
	for _, p := range h.owed {
		if h.k.Finishes(p.effect) {
			return true
		}
	}
	return false
}

// Stopped cancels the effects. They are still owed, and the next activation performs them
// again.
func (h *Host[S]) Stopped() {
	if h.cancel != nil {
		h.cancel()
	}
	if h.ending != nil {
		h.ending()
	}
	if h.k.Forget != nil {
		h.k.Forget(h.addr)
	}
	if h.born {
		h.k.metrics.activations.Dec()
	}
	if h.busy && len(h.owed) > 0 { // a panic ended the activation with effects owed
		h.repeat(Wake{}, panicPause)
	}
}

// run activates if necessary and takes the message. An error means that the memory is not the
// committed row, or that there is none to load.
func (h *Host[S]) run(c cluster.Context, in incoming, trust bool) error {
	unproven := false
	if h.from == nowhere {
		if err := h.activate(c, in, trust); err != nil {
			return err
		}
		unproven = h.from == seeded
	}
	changed, err := h.handle(c, in, true)
	if err == nil && (changed || unproven) {
		h.act()
	}
	return err
}

// activate loads the row and decides Activated on it. With trust the row may come from the
// message instead of a read.
func (h *Host[S]) activate(c cluster.Context, in incoming, trust bool) error {
	if trust && h.begins(in.msg) {
		return nil
	}
	if trust && h.k.Seed != nil {
		if l, ok := h.k.Seed(h.addr, in.msg); ok {
			h.row, h.from = l, seeded
		}
	}
	if h.from == nowhere {
		ctx, cancel := context.WithTimeout(context.Background(), h.k.cfg.CommitTimeout)
		l, err := h.k.Load(ctx, h.addr)
		cancel()
		if err != nil {
			if errors.Is(err, notFound) && h.begins(in.msg) {
				h.none = true
				return nil
			}
			return loadError{err}
		}
		h.row, h.from = l, known
	}
	h.row.Guard.SetEpoch = h.row.Guard.Epoch + 1
	h.held.Store(true)
	if h.goes { // the owner of the shard decides on effects in flight
		return nil
	}
	if _, err := h.handle(c, incoming{msg: Activated{Epoch: h.row.Guard.SetEpoch}}, false); err != nil {
		return err
	}
	if h.from == known {
		h.act() // a seed proves itself first
	}
	return nil
}

// begins starts without a row if m begins an entity, and reports whether it did.
func (h *Host[S]) begins(m any) bool {
	if h.k.Create == nil {
		return false
	}
	s, ok := h.k.Create(h.addr, m)
	if ok {
		h.row, h.from = Loaded[S]{State: s}, starting
		h.held.Store(true)
	}
	return ok
}

var notFound = problem.New(problem.CodeNotFound, "")

// loadError is an error of Load.
type loadError struct{ error }

func (e loadError) Unwrap() error { return e.error }

// handle decides on a message, commits the changes, and only then replies and publishes.
// answer is false for a message of the host itself, which gets no reply. A refusal by the
// machine is a reply and not an error.
func (h *Host[S]) handle(c cluster.Context, in incoming, answer bool) (changed bool, err error) {
	now, m := h.look(), in.msg
	given := m
	if in.answer != nil {
		given = *in.answer
	}
	d, err := h.decide(given, now)
	if err != nil {
		h.k.metrics.decided("refused")
		if answer {
			c.Reply(err)
		} else {
			h.log(h.k.cfg.Log.Error()).Err(err).Msg("the machine refuses Activated")
		}
		return false, nil
	}
	if d.Question != nil {
		if !answer || in.result {
			panic(fmt.Sprintf("durable: the machine has a question on %T", m))
		}
		h.k.metrics.decided("asked")
		h.ask(c, in, d.Question)
		return false, nil
	}
	if !d.Changed {
		h.k.metrics.decided("unchanged")
		if answer {
			c.Reply(d.Reply)
		}
		return false, nil
	}
	w, err := h.commit(c, m, d, now)
	switch {
	case err == nil:
	case errors.Is(err, journal.ErrWithdrawn) && answer && c.HasSender() && h.from != seeded:
		// Nothing was sent, so the row is unchanged and the activation continues.
		h.k.metrics.decided("withdrawn")
		c.Reply(problem.Unavailable("The node has too much new work.", retryAfter))
		return false, nil
	case errors.Is(err, journal.ErrReplay):
		h.k.metrics.decided("replayed")
		c.Reply(err)
		return false, nil
	case errors.Is(err, journal.ErrConflict) && h.from != known,
		errors.Is(err, journal.ErrExists) && h.from != known,
		errors.Is(err, journal.ErrRefused) && h.from == starting && !h.none: // most likely the row exists
		return false, fmt.Errorf("%w: %w", errOld, err)
	case errors.Is(err, journal.ErrExists):
		return false, h.repeated(c, m, err, now)
	case errors.Is(err, journal.ErrRefused):
		if d, w, err = h.refused(c, m, err, now); err != nil {
			return false, err
		}
	default:
		return false, err
	}
	prev := h.row.State
	h.row.State = d.Next
	if w == nil {
		h.k.metrics.decided("remembered")
	} else {
		h.k.metrics.decided("committed")
		if len(w.Rows) > 0 { // one of them is the entity's own
			h.adopt()
		}
	}
	failpoint.Hit(pointBeforeReply)
	if answer {
		if len(h.owed) > 0 { // what a cancel cancels does not begin after its answer
			h.withdraw(h.k.Machine.Owed(h.row.State))
		}
		c.Reply(d.Reply)
	}
	failpoint.Hit(pointBeforeAfter)
	if h.k.After != nil {
		h.k.After(h.addr, prev, d.Next, d)
	}
	return true, nil
}

// setBy is by how much the clock at least differs from the monotonic one if it was set.
const setBy = time.Second

// look returns the time of a decision. If the clock was set since the last one, the moments that
// the activation remembers move with it.
func (h *Host[S]) look() time.Time {
	now, at := h.k.cfg.Now(), time.Now()
	if step := now.Sub(h.now) - at.Sub(h.at); h.k.Shift != nil && !h.at.IsZero() && step.Abs() >= setBy {
		h.row.State = h.k.Shift(h.row.State, step)
	}
	h.now, h.at = now, at
	return now
}

// decide gives the machine a message.
func (h *Host[S]) decide(m any, now time.Time) (Decision[S], error) {
	if h.goes {
		m = Leaving{Msg: m}
	}
	return h.k.Machine.Decide(h.row.State, m, now)
}

// repeated gives the first reply again to a message that was carried out before.
func (h *Host[S]) repeated(c cluster.Context, m any, cause error, now time.Time) error {
	d, err := h.decide(Repeated{Msg: m}, now)
	switch {
	case err != nil:
		return refusal{err}
	case d.Changed || d.Question != nil:
		return refusal{fmt.Errorf("decide on a repeated %T: %w", m, cause)}
	}
	h.k.metrics.decided("repeated")
	c.Reply(d.Reply)
	return nil
}

// refusal is the error when the database refuses the rows and the machine has no other decision.
type refusal struct{ error }

func (e refusal) Unwrap() error { return e.error }

// refused tells the machine once that the database refuses the rows of its decision on m, and
// commits the decision that it makes instead.
func (h *Host[S]) refused(c cluster.Context, m any, cause error, now time.Time) (Decision[S], *journal.Commit, error) {
	h.log(h.k.cfg.Log.Warn()).Err(cause).Type("msg", m).Msg("rows refused, the machine decides again")
	msg := Refused{Msg: m, Cause: cause.Error()}
	d, err := h.k.Machine.Decide(h.row.State, msg, now)
	if err != nil {
		return d, nil, refusal{err}
	}
	if !d.Changed {
		return d, nil, refusal{cause}
	}
	w, err := h.commit(c, msg, d, now)
	if errors.Is(err, journal.ErrRefused) {
		err = refusal{err}
	}
	return d, w, err
}

// commit makes a decision durable, and returns its commit. Even a drain waits for it, so that
// the outcome is known.
func (h *Host[S]) commit(c cluster.Context, m any, d Decision[S], now time.Time) (*journal.Commit, error) {
	ctx, cancel := context.WithTimeout(context.Background(), h.k.cfg.CommitTimeout)
	defer cancel()
	for {
		basis := h.k.writer.Basis()
		w := h.rows(c, m, d, now)
		if w == nil {
			return nil, nil
		}
		w.Basis = basis
		if err := h.k.writer.Do(ctx, w); !errors.Is(err, journal.ErrOutdated) {
			return w, err
		}
	}
}

// rows returns the commit of a decision; nil if it has no rows. New work that cannot be
// written before the asker's deadline is not sent.
func (h *Host[S]) rows(c cluster.Context, m any, d Decision[S], now time.Time) *journal.Commit {
	op := id.OpID{UUID: id.New(h.addr.Shard())}
	w := h.k.Rows(h.addr, h.row, d, m, op, now)
	if w != nil {
		w.Op, w.Tenant, w.Shard, w.Until = op, h.addr.Tenant, h.addr.Shard(), c.Deadline()
	}
	return w
}

// adopt takes over the guard that a commit has left in the entity's row.
func (h *Host[S]) adopt() {
	g := &h.row.Guard
	if h.from == starting || g.Version == 0 {
		*g = journal.Guard{Version: 1, Epoch: 0, SetEpoch: 1}
	} else {
		g.Version, g.Epoch = g.Version+1, g.SetEpoch
	}
	h.from = known
}

// fail ends an activation whose memory is not the committed row.
func (h *Host[S]) fail(c cluster.Context, in incoming, err error) {
	told, owed := !c.HasSender(), len(h.owed) > 0
	h.over = true
	h.drop()
	c.Stop()
	if h.k.Left != nil && h.goes {
		h.k.Left(h.addr)
	}
	var (
		seen    *problem.Error
		load    loadError
		settled refusal

		elsewhere *Elsewhere
		other     *Other
	)
	switch {
	case errors.As(err, &other):
		h.k.metrics.decided("other")
		h.passTo(c, in, other.Kind)
		return
	case errors.As(err, &elsewhere):
		h.k.metrics.decided("elsewhere")
		h.pass(c, in, elsewhere.At)
		return
	case errors.As(err, &load) && errors.As(err, &seen): // no such row
		h.k.metrics.decided("absent")
		c.Reply(seen)
		return
	case errors.As(err, &settled), errors.Is(err, journal.ErrRefused):
		h.k.metrics.decided("refused_by_storage")
		h.log(h.k.cfg.Log.Error()).Err(err).Type("msg", in.msg).Msg("rows refused")
		if errors.As(err, &seen) {
			c.Reply(seen)
		} else {
			c.Reply(fmt.Errorf("decide on %T: %w", in.msg, err))
		}
		if owed && !in.result { // the result of an effect would be refused again at once
			h.repeat(Wake{}, in.n)
		}
		return
	case errors.Is(err, journal.ErrConflict), errors.Is(err, journal.ErrExists):
		h.k.metrics.decided("conflict")
		h.k.metrics.conflicts.Inc()
		c.Reply(cluster.ErrMoved)
	default: // no storage, or the outcome is open
		h.k.metrics.decided("unavailable")
		h.log(h.k.cfg.Log.Warn()).Err(err).Type("msg", in.msg).Msg("storage unavailable, activation ends")
		c.Reply(problem.Unavailable("The request could not be stored.", retryAfter))
	}
	switch {
	case told && !in.result:
		h.repeat(in.msg, in.n)
	case owed:
		h.repeat(Wake{}, in.n)
	}
}

// pass sends the message to the member that has the activation. A Wake is dropped: that
// member wakes the owner when it has left the row.
func (h *Host[S]) pass(c cluster.Context, in incoming, at id.MemberID) {
	if _, wake := in.msg.(Wake); wake {
		c.Reply(nil)
		return
	}
	if !c.HasSender() {
		h.repeat(in.msg, max(in.n, passPause))
		return
	}
	h.passOn(c, func(ctx context.Context) (any, error) { return h.k.node.AskAt(ctx, at, h.addr, in.msg) })
}

// passTo sends the message to the actor of another kind with the same id.
func (h *Host[S]) passTo(c cluster.Context, in incoming, kind string) {
	to := h.addr
	to.Kind = kind
	if !c.HasSender() {
		h.k.node.Tell(to, in.msg)
		return
	}
	h.passOn(c, func(ctx context.Context) (any, error) { return h.k.node.Ask(ctx, to, in.msg) })
}

// passOn replies what another activation answers.
func (h *Host[S]) passOn(c cluster.Context, other func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), h.k.cfg.CommitTimeout)
	defer cancel()
	v, err := other(ctx)
	if err != nil {
		v = err
	}
	c.Reply(v)
}

// swept identifies a message that the sweep, or a timer's row, sends until the entity has done
// what it owes; a Proceed follows the Wake of its thread. For other messages it returns nil.
func swept(m any) any {
	switch m.(type) {
	case Wake, TimerDue:
		return m
	case msg.Proceed:
		return msg.Proceed{}
	}
	return nil
}

// waiting is a message of the sweep that waits to be told again.
type waiting struct {
	to  cluster.Address
	msg any
}

// repeat tells m again after a pause that doubles with n. Messages of the sweep that say the same
// to one entity are one: a row that cannot be read gets another one in each pass.
func (h *Host[S]) repeat(m any, n int) {
	k, node, addr := h.k, h.k.node, h.addr
	w := waiting{addr, swept(m)}
	if w.msg != nil {
		if _, waits := k.waiting.LoadOrStore(w, nil); waits {
			return
		}
	}
	node.After(min(firstPause<<min(n, 10), lastPause), func() {
		k.waiting.Delete(w)
		if node.Owns(addr.Shard()) {
			node.Tell(addr, again{msg: m, n: n + 1})
		} else {
			node.Tell(addr, m)
		}
	})
}

// drop forgets the row and cancels the effects.
func (h *Host[S]) drop() {
	if h.cancel != nil {
		h.cancel()
		h.ctx, h.cancel = nil, nil
	}
	h.held.Store(false)
	h.row, h.owed = Loaded[S]{}, nil
	h.from, h.none = nowhere, false
}

// act performs the effects that the state newly owes and cancels those that it no longer owes.
func (h *Host[S]) act() {
	if h.from == starting {
		return
	}
	effects := h.k.Machine.Owed(h.row.State)
	if h.performing(effects) {
		return
	}
	if h.goes { // the next activation performs the effects that are not in flight
		effects = slices.DeleteFunc(slices.Clone(effects), func(e Effect) bool { return h.owed[e.Key()] == nil })
	}
	if len(effects) == 0 {
		if h.owed != nil {
			h.cancel()
			h.ctx, h.cancel, h.owed = nil, nil, nil
		}
		return
	}
	if h.owed == nil {
		h.owed = make(map[string]*performed[S], len(effects))
		h.ctx, h.cancel = context.WithCancel(turn.With(context.Background(), h.addr.Tenant))
	}
	h.withdraw(effects)
	var fresh []*performed[S]
	for _, e := range effects {
		key := e.Key()
		if h.owed[key] == nil {
			p := &performed[S]{
				k: h.k, ref: h.ref, effect: e, key: key,
				who: Activation{Address: h.addr, Epoch: h.row.Guard.SetEpoch, now: h.now, at: h.at},
			}
			p.ctx, p.cancel = context.WithCancel(h.ctx)
			h.owed[key] = p
			fresh = append(fresh, p)
		}
	}
	if len(fresh) > 0 {
		failpoint.Hit(pointBeforeAct)
	}
	inOrder(fresh)
	for _, p := range fresh {
		h.k.effects.submit(p)
	}
}

// withdraw cancels the effects in flight or waiting that are not among effects.
func (h *Host[S]) withdraw(effects []Effect) {
	if len(h.owed) == 0 || h.performing(effects) {
		return
	}
	keep := make(map[string]bool, len(effects))
	for _, e := range effects {
		keep[e.Key()] = true
	}
	for key, p := range h.owed {
		if !keep[key] {
			p.cancel()
			delete(h.owed, key)
		}
	}
}

// performing reports whether effects are exactly those already owed, as after most messages.
func (h *Host[S]) performing(effects []Effect) bool {
	if len(effects) != len(h.owed) {
		return false
	}
	for _, e := range effects {
		if h.owed[e.Key()] == nil {
			return false
		}
	}
	return true
}

// leaveIfIdle ends an idle activation. If it is not idle long enough it schedules a check;
// there is only one check at a time.
func (h *Host[S]) leaveIfIdle(c cluster.Context, now time.Time) {
	if h.over {
		return
	}
	if h.goes && !h.finishes() {
		h.handOver(c)
		return
	}
	if len(h.owed) > 0 {
		return
	}
	if h.reads > 0 && !h.goes { // checked again with the answer
		return
	}
	rest := h.k.Idle - now.Sub(h.used)
	if h.from == starting || rest <= 0 || h.k.Done != nil && h.k.Done(h.row.State) {
		h.over = true
		c.Stop()
		return
	}
	if !h.bell {
		h.bell = true
		ref := h.ref
		h.k.node.After(rest, func() { ref.Send(idleCheck{}) })
	}
}

// handOver ends an activation on a node that it leaves, after its effects in flight have
// ended. It wakes the owner's activation unless the state needs nothing more.
func (h *Host[S]) handOver(c cluster.Context) {
	rests := h.from == starting || h.k.Done != nil && h.k.Done(h.row.State)
	h.over = true
	h.drop()
	c.Stop()
	if h.k.Left != nil {
		h.k.Left(h.addr)
	}
	if node := h.k.node; !rests && !node.Owns(h.addr.Shard()) {
		node.Tell(h.addr, Wake{})
	}
}

func (h *Host[S]) log(e *zerolog.Event) *zerolog.Event {
	return e.Str("kind", h.k.Name).Stringer("tenant", h.addr.Tenant).Stringer("id", h.addr.ID)
}
