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

// probeTime bounds one look at the storage.
const probeTime = 2 * time.Second

// probe finds out for /readyz whether the next call will be served. It holds a
// connection of its own: whatever ends the connections of this node ends that one
// too. After a failure the kept connections of all pools are dropped, and every lane
// of the writer has to commit, before the node is ready again.
type probe struct {
	member *membership.Membership
	writer *journal.Writer
	trust  func() bool // the lease holds for a while
	from   *pg.Pool
	kept   []*pg.Pool // whose connections are dropped after a failure

	turn chan struct{} // capacity 1: held by the look under way; guards the fields below
	conn *pg.Conn
	sick bool
	at   time.Time // when the last look began
	err  error     // what it found
}

var (
	errLease   = errors.New("the node's lease has run out or was not renewed: the database was not reachable")
	errStorage = errors.New("the database is not reachable")
)

// check looks. Callers that wait for the same look share it, so a crowd of them costs
// the database one query at a time.
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
	case !p.trust() || !p.member.Renews(): // said first: it tells more of an outage than that the database is away
		p.sick = true
		return errLease
	case err != nil:
		p.sick = true
		return errStorage // its reason names addresses
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

// ask sends a query over the held connection, or over a new one where there is none.
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

// stop gives the connection back.
func (p *probe) stop(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		p.drop()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
