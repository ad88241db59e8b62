package browser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Peers are the nodes of the cluster.
type Peers interface {
	Owner(s id.Shard) id.MemberID // zero: no node
	Member() id.MemberID          // this node
	Call(ctx context.Context, to id.MemberID, service string, m any) (any, error)
}

// Finder finds the node that holds a recorder session. A session is made on the node that owns
// the shard of its principal, in that shard, so that every node finds it by its id. When the shard
// has moved since, the other nodes are asked: a session stays where its page is.
type Finder struct {
	Peers  Peers
	Living func() []id.MemberID // also those that drain
}

// askHeld is how long another node may take to say whether it holds a session of a principal. A
// node that does not answer is passed over: its sessions are lost if it is dead.
const askHeld = 2 * time.Second

// askRecorder bounds a question that another node answers: a dry run takes the longest. A node
// that dies is noticed before.
const askRecorder = 10 * time.Minute

// Record asks the node that holds the session, or on which it starts.
func (f Finder) Record(ctx context.Context, q *msg.Record) (*msg.Recorded, error) {
	shard := q.Session.Shard()
	if q.Do == msg.RecordStart {
		shard = q.Home.Shard()
	}
	home := f.Peers.Owner(shard)
	if home.IsZero() {
		home = f.Peers.Member()
	}
	if q.Do == msg.RecordStart {
		var err error
		if home, err = f.place(ctx, home, q); err != nil {
			return nil, err
		}
	}
	got, err := f.ask(ctx, home, *q)
	if q.Do == msg.RecordStart || !unknown(err) {
		return got, err
	}
	for _, m := range f.Living() {
		if m == home {
			continue
		}
		moved, elsewhere := f.ask(ctx, m, *q)
		switch {
		case elsewhere == nil:
			return moved, nil
		case errors.Is(elsewhere, problem.New(problem.CodeUnavailable, "")):
			err = elsewhere // the session may be there
		case !unknown(elsewhere):
			return nil, elsewhere
		}
	}
	return nil, err
}

// place returns the node on which a session starts: the home of its principal. If a node that is no longer the home has a live
// session, it is that node for a repetition of the call that began the session, and any other call is refused.
func (f Finder) place(ctx context.Context, home id.MemberID, q *msg.Record) (id.MemberID, error) {
	for _, m := range f.Living() {
		if m == home {
			continue
		}
		held := *q
		held.Do = msg.RecordHeld
		bounded, cancel := context.WithTimeout(ctx, askHeld)
		got, err := f.ask(bounded, m, held)
		cancel()
		switch {
		case err != nil:
		case got.Begun:
			return m, nil
		case got.Held:
			return home, problem.New(problem.CodeInUse, "You have a live recorder session: finish or delete it first.")
		}
	}
	return home, ctx.Err()
}

func (f Finder) ask(ctx context.Context, m id.MemberID, q msg.Record) (*msg.Recorded, error) {
	ctx, cancel := context.WithTimeout(ctx, askRecorder)
	defer cancel()
	v, err := f.Peers.Call(ctx, m, RecorderService, q)
	if err != nil {
		if lostNode(err) {
			return nil, &problem.Error{Code: problem.CodeUnavailable, Detail: "The node that holds the recorder session does not answer. Read the session to see what was done.", RetryAfter: time.Second}
		}
		return nil, err
	}
	got, ok := v.(msg.Recorded)
	if !ok {
		return nil, fmt.Errorf("%T is no answer of a recorder", v)
	}
	return &got, nil
}

func unknown(err error) bool {
	return errors.Is(err, problem.New(problem.CodeBrowserSkillNotFound, ""))
}

// lostNode reports whether a call did not reach another node, or its answer did not come back.
func lostNode(err error) bool {
	var p *problem.Error
	return err != nil && !errors.As(err, &p) && !errors.Is(err, context.Canceled)
}
