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
)

// An activation whose shard has moved may stay where it is until it has finished
// what it began (Kind.Finishes). The new owner must not take its row up meanwhile:
// it would cut off what could end. So whoever reads a row that says that something
// is under way asks the other members first. That is a courtesy, not a lock: two
// activations may still meet, and the swap of the row lets one of them commit.

// Elsewhere is the error of Kind.Load for a row on which the activation of another
// member is at work.
type Elsewhere struct{ At id.MemberID }

func (e *Elsewhere) Error() string {
	return fmt.Sprintf("durable: member %s is at work on the row", e.At)
}

// serviceHolds asks a member whether an activation of it is at work.
const serviceHolds = "durable.holds"

// Holding is the question, and Held the answer.
type (
	Holding struct {
		Kind   string
		Tenant id.TenantID
		ID     id.UUID
	}
	Held struct{ Held bool }
)

// AddTo lets the messages of this package cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("timer_due", TimerDue{})
	c.Add("wake", Wake{})
	c.Add("durable_holding", Holding{})
	c.Add("durable_held", Held{})
}

// ServeHolder answers the other members' Holders. It is called before n starts.
func ServeHolder(n *cluster.Node) {
	n.Serve(serviceHolds, func(_ context.Context, _ id.MemberID, m any) (any, error) {
		q, ok := m.(Holding)
		if !ok {
			return nil, fmt.Errorf("durable: %T is no question", m)
		}
		return Held{n.Holds(cluster.Address{Kind: q.Kind, Tenant: q.Tenant, ID: q.ID})}, nil
	})
}

const (
	// askPause is the pause before a member that could not be reached is asked again.
	askPause = 50 * time.Millisecond
	// askTime is how long the question takes at most: a member that is silent for so
	// long cannot be waited for.
	askTime = 3 * time.Second
)

// Holder asks the other members whether one of them is at work on an actor: it
// returns that member, or the zero id. living are all members, those that drain too.
// A member that does not answer in time counts as one that is not.
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

// holds asks one member, again while it cannot be reached.
func holds(ctx context.Context, n *cluster.Node, m id.MemberID, a cluster.Address, living func() []id.MemberID) bool {
	for {
		v, err := n.Call(ctx, m, serviceHolds, Holding{Kind: a.Kind, Tenant: a.Tenant, ID: a.ID})
		switch {
		case err == nil:
			h, _ := v.(Held)
			return h.Held
		case errors.Is(err, cluster.ErrUnknownMember), errors.Is(err, cluster.ErrLost):
		default: // an older version does not know the question, and holds nothing
			return false
		}
		pause := time.NewTimer(askPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return false
		}
		if !slices.Contains(living(), m) {
			return false
		}
	}
}
