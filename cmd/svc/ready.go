package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentsvc/cluster/membership"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/pg"
)

// probeTime is the deadline of one check of the storage.
const probeTime = 2 * time.Second

// probe tells /readyz whether the next call will be served. It holds a connection of its
// own, which breaks when the connections of this node break. After a failure the pools in
// kept drop their connections, and every lane of the writer must commit, before the node is
// ready again.
type probe struct {
	member *membership.Membership
	writer *journal.Writer
	trust  func() bool // the lease holds for a while longer
	from   *pg.Pool
	kept   []*pg.Pool // pools whose connections are dropped after a failure

	turn chan struct{} // capacity 1: held by the check in flight; guards the fields below
	conn *pg.Conn
	sick bool
	at   time.Time // when the last check began
	err  error     // its result
}

var (
	errLease   = errors.New("the node's lease has run out or was not renewed: the database was not reachable")
	errStorage = errors.New("the database is not reachable")
)

// check returns nil if storage works. Concurrent callers share one check, so the database
// gets one query at a time.
func (p *probe) check(ctx context.Context) error {
	came := time.Now()
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.turn }()
	if !p.at.After(came) {
		p.at = time.Now()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
		defer cancel()
		p.err = p.look(ctx)
	}
	return p.err
}

func (p *probe) look(ctx context.Context) error {
	err := p.ask(ctx)
	switch {
	case !p.trust() || !p.member.Renews(): // reported first: it says more than that the database is not reachable
		p.sick = true
		return errLease
	case err != nil:
		p.sick = true
		return errStorage // the reason is not shown, because it names addresses
	case p.writer.Down() != nil:
		p.sick = true
		return errStorage
	case !p.sick:
		return nil
	}
	for _, pool := range p.kept {
		pool.Reset()
	}
	if p.writer.Prove(ctx) != nil {
		return errStorage
	}
	p.sick = false
	return nil
}

// ask sends a query over the held connection, or over a new one if there is none.
func (p *probe) ask(ctx context.Context) error {
	if p.conn == nil {
		p.sick = true
		conn, err := p.from.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("look for storage: %w", err)
		}
		p.conn = conn
	}
	if err := p.conn.Ping(ctx); err != nil {
		p.drop()
		return fmt.Errorf("look for storage: %w", err)
	}
	return nil
}

func (p *probe) drop() {
	if p.conn != nil {
		p.conn.Release() // a broken one is closed
		p.conn = nil
	}
}

// stop releases the connection.
func (p *probe) stop(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		p.drop()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
