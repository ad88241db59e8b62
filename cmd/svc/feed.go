package main

import (
	"context"

	"agentsvc/actors/limit/hold"
	"agentsvc/actors/notice"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/transport/edge"
	"agentsvc/transport/platform"
)

// openBoard makes the board of changes, and reports to it what the API changes. The journal and
// the outbox report their own.
func (s *service) openBoard() {
	var peers notice.Peers
	if s.mesh != nil {
		peers = s.node
	}
	s.board = notice.New(s.sweeps, peers, s.log)
	s.onStop(infallible(s.board.Stop))
	s.node.Serve(notice.Service, s.board.Serve)
	s.tables.OnChange(s.changed)
}

// changed reports what a transaction of a store has changed.
func (s *service) changed(t id.TenantID, changes []msg.Change) {
	for _, c := range changes {
		s.board.Note(t, c)
	}
}

// committed reports what a commit of an actor has changed.
func (s *service) committed(c *journal.Commit) {
	if s.board.Wanted(c.Tenant) {
		c.Changes(func(change msg.Change) { s.board.Note(c.Tenant, change) })
	}
}

// triggerFired reports that the time at which a trigger fired last is written.
func (s *service) triggerFired(t id.TenantID, g id.TriggerID) {
	s.board.Note(t, msg.Change{Kind: "trigger", ID: g.UUID})
}

// feeds opens feeds for the edge's connections. A feed holds one of the tenant's places for
// event streams until it is gone.
type feeds struct {
	board  *notice.Board
	limits hold.TenantStreams
}

func (f feeds) Open(ctx context.Context, v platform.FeedViewer) (edge.Subscriber, error) {
	release, err := f.limits.Stream(ctx, v.Tenant)
	if err != nil {
		return nil, err
	}
	seen := notice.Viewer{Tenant: v.Tenant, User: v.User, Role: v.Role}
	for _, name := range v.Topics {
		topic, _ := notice.Topic(name)
		seen.Topics |= topic
	}
	r := feedReader{f.board.Open(ctx, seen), release}
	if r.Decides, err = v.Decides(ctx); err != nil {
		r.Gone()
		return nil, err
	}
	return r, nil
}

type feedReader struct {
	*notice.Reader
	release func()
}

func (r feedReader) Attach(c *edge.Conn) { r.Reader.Attach(c) }

func (r feedReader) Gone() {
	r.Reader.Gone()
	r.release()
}
