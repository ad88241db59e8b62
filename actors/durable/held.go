package durable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
)

// An activation whose shard has moved may stay on its node until its effects in flight have
// ended (Kind.Finishes). If the new owner took over the row meanwhile, these effects would be
// lost. So a kind that loads a row with an effect in flight asks the other members first.
// This is no lock: two activations may still be live, and the swap of the row lets one of
// them commit.

// Elsewhere is the error of Kind.Load for a row whose activation is on another member.
type Elsewhere struct{ At id.MemberID }

func (e *Elsewhere) Error() string {
	return fmt.Sprintf("durable: the activation of the row is on member %s", e.At)
}

// serviceHolds asks a member whether it has an activation of a row.
const serviceHolds = "durable.holds"

// Holding asks a member whether it has an activation of a row. Held is the answer.
type (
	Holding struct {
		Kind   string
		Tenant id.TenantID
		ID     id.UUID
	}
	Held struct{ Held bool }
)

// AddTo registers the messages of this package, which cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("timer_due", TimerDue{})
	c.Add("wake", Wake{})
	c.Add("durable_holding", Holding{})
	c.Add("durable_held", Held{})
}

// ServeHolder answers the questions of other members' Holders. It is called before n starts.
func ServeHolder(n *cluster.Node) {
	n.Serve(serviceHolds, func(_ context.Context, _ id.MemberID, m any) (any, error) {
		q, ok := m.(Holding)
		if !ok {
			return nil, fmt.Errorf("durable: unexpected question %T", m)
		}
		return Held{n.Holds(cluster.Address{Kind: q.Kind, Tenant: q.Tenant, ID: q.ID})}, nil
	})
}

const (
	// askPause is the pause before an unreachable member is asked again.
	askPause = 50 * time.Millisecond
	// askTime bounds the question. A member without an answer by then counts as one without
	// the activation.
	askTime = 3 * time.Second
)

// Holder returns a function that asks the other members for an activation of an actor. It
// returns the member that has one, or the zero id. living returns all members, also those
// that drain. A member that does not answer in time counts as one without the activation.
func Holder(n *cluster.Node, living func() []id.MemberID) func(ctx context.Context, a cluster.Address) id.MemberID {
	return func(ctx context.Context, a cluster.Address) id.MemberID {
		ctx, found := context.WithTimeout(ctx, askTime)
		defer found()
		var (
			mu     sync.Mutex // guards at
			at     id.MemberID
			asking sync.WaitGroup
		)
		for _, m := range living() {
			if m == n.Member() {
				continue
			}
			asking.Go(func() {
				if holds(ctx, n, m, a, living) {
					mu.Lock()
					at = m
					mu.Unlock()
					found()
				}
			})
		}
		asking.Wait()
		return at
	}
}

// holds asks one member, and repeats the question while the member is unreachable.
func holds(ctx context.Context, n *cluster.Node, m id.MemberID, a cluster.Address, living func() []id.MemberID) bool {
	for {
		v, err := n.Call(ctx, m, serviceHolds, Holding{Kind: a.Kind, Tenant: a.Tenant, ID: a.ID})
		switch {
		case err == nil:
			h, _ := v.(Held)
			return h.Held
		case errors.Is(err, cluster.ErrUnknownMember), errors.Is(err, cluster.ErrLost):
		default: // a member of an older version does not know the question
			return false
		}
		if !pause.For(ctx, askPause) || !slices.Contains(living(), m) {
			return false
		}
	}
}
