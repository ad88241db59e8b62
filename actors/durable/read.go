package durable

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

// answered resumes a message after the machine's question on it.
type answered struct {
	in    incoming
	asked bool // an asker waited when the machine returned the question
	err   error
}

// reading is a question in progress.
type reading[S any] struct {
	h     *hosting[S]
	addr  cluster.Address
	ctx   context.Context // of the activation
	until time.Time
	later *cluster.Later
	q     any
	in    incoming
	asked bool
}

// ask starts to read the answer to a question of the machine, outside of the mailbox. The
// machine then decides on the message again.
func (h *Host[S]) ask(c cluster.Context, in incoming, q any) {
	if h.life == nil {
		h.life, h.ending = context.WithCancel(turn.With(context.Background(), h.addr.Tenant))
	}
	until := time.Now().Add(h.k.cfg.CommitTimeout)
	if d := c.Deadline(); !d.IsZero() && d.Before(until) {
		until = d
	}
	h.reads++
	h.k.effects.submit(&reading[S]{h: h.k, addr: h.addr, ctx: h.life, until: until, q: q, in: in, asked: c.HasSender(), later: c.Later(in.msg)})
}

func (r *reading[S]) tenant() id.TenantID { return r.addr.Tenant }

func (*reading[S]) waits() {}

func (r *reading[S]) run() {
	ctx, cancel := context.WithDeadline(r.ctx, r.until)
	defer cancel()
	out := answered{in: r.in, asked: r.asked}
	v, err := r.read(ctx)
	if out.err = err; err == nil {
		out.in.answer = &Answered{Msg: r.in.msg, Question: r.q, Answer: v}
	}
	r.later.Resume(out)
}

func (r *reading[S]) read(ctx context.Context) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.h.cfg.Log.Error().Str("kind", r.h.Name).Stringer("tenant", r.addr.Tenant).Stringer("id", r.addr.ID).
				Interface("panic", p).Bytes("stack", debug.Stack()).Msg("read for a question panicked")
			err = fmt.Errorf("read %T: panic: %v", r.q, p)
		}
	}()
	return r.h.Read(ctx, r.addr, r.q)
}

// unread replies that a question could not be answered. A told message comes again.
func (h *Host[S]) unread(c cluster.Context, in incoming, err error) {
	var seen *problem.Error
	if errors.As(err, &seen) {
		h.k.metrics.decided("refused")
		c.Reply(seen)
		return
	}
	h.k.metrics.decided("unavailable")
	h.log(h.k.cfg.Log.Warn()).Err(err).Type("msg", in.msg).Msg("storage unavailable, question not answered")
	if c.HasSender() {
		c.Reply(problem.Unavailable("The request could not be decided.", retryAfter))
		return
	}
	h.repeat(in.msg, in.n)
}
