package durable

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/problem"
)

// answered resumes a message on which the machine had a question.
type answered struct {
	in    incoming
	asked bool // an asker waited when the question came up
	err   error
}

// reading is a question under way.
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

// ask answers a question of the machine outside of the mailbox. The message is decided on
// again with the answer.
func (h *Host[S]) ask(c cluster.Context, in incoming, q any) {
	if h.life == nil {
		h.life, h.ending = context.WithCancel(context.Background())
	}
	until := time.Now().Add(h.k.cfg.CommitTimeout)
	if d := c.Deadline(); !d.IsZero() && d.Before(until) {
		until = d
	}
	h.reads++
	h.k.effects.submit(&reading[S]{h: h.k, addr: h.addr, ctx: h.life, until: until, q: q, in: in, asked: c.HasSender(), later: c.Later(in.msg)})
}

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
				Interface("panic", p).Bytes("stack", debug.Stack()).Msg("reading for a machine panicked")
			err = fmt.Errorf("read %T: panic: %v", r.q, p)
		}
	}()
	return r.h.Read(ctx, r.addr, r.q)
}

// unread replies that a question could not be answered; what was told comes again.
func (h *Host[S]) unread(c cluster.Context, in incoming, err error) {
	var seen *problem.Error
	if errors.As(err, &seen) {
		h.k.metrics.decided("refused")
		c.Reply(seen)
		return
	}
	h.k.metrics.decided("unavailable")
	h.log(h.k.cfg.Log.Warn()).Err(err).Type("msg", in.msg).Msg("no storage, a question is not answered")
	if c.HasSender() {
		c.Reply(problem.Unavailable("The request could not be decided.", retryAfter))
		return
	}
	h.repeat(in.msg, in.n)
}
