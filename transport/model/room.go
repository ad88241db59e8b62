package model

import (
	"context"
	"math"

	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
	fair "agentsvc/schemas/turn"
)

// A provider may send much and then nothing for long, in any number of turns, and what a turn has said is kept until its step is
// committed. So a turn that holds more than smallTurn, as text or as an event that has not ended, has a place on the node, and one
// that holds more than longTurn has one of the few for the longest, too. A turn waits for each once, and one of the longest for
// nothing more, so turns that wait for places of each other always go on.
const (
	smallTurn = 64 << 10
	longTurn  = 512 << 10

	longAll, longEach       = 256, 32 // 128 MiB as text; of a tenant 16 MiB
	longestAll, longestEach = 16, 2   // 128 MiB; of a tenant 16 MiB
)

// rooms are a node's places for turns.
type rooms struct{ long, longest *fair.Places }

// room is what one turn has of them. A nil room has no bound.
type room struct {
	of     *rooms
	ctx    context.Context // of the turn
	tenant id.TenantID
	fits   int // how much the turn may hold
}

// newRoom returns the room of a turn, in the turn of the tenant that ctx names (fair.With).
func newRoom(ctx context.Context, of *rooms) *room {
	if of == nil {
		return nil
	}
	return &room{of, ctx, fair.Tenant(ctx), smallTurn}
}

// hold waits until the turn may hold n bytes.
func (r *room) hold(n int) error {
	if r == nil || n <= r.fits {
		return nil
	}
	if r.fits == smallTurn {
		if err := r.of.long.Take(r.ctx, r.tenant); err != nil {
			return err
		}
		r.fits = longTurn
	}
	if n > r.fits {
		if err := r.of.longest.Take(r.ctx, r.tenant); err != nil {
			return err
		}
		r.fits = math.MaxInt
	}
	return nil
}

// leave ends the turn. Its places are given back; those of one that has begun to say something may be kept by the caller with
// that. One that has not may be tried again, and must not wait for a place with another in hand.
func (r *room) leave(begun bool) {
	if r == nil || r.fits == smallTurn {
		return
	}
	of, tenant, longest := r.of, r.tenant, r.fits > longTurn
	give := func() {
		of.long.Give(tenant)
		if longest {
			of.longest.Give(tenant)
		}
	}
	if begun {
		tool.Kept(r.ctx, give)
		return
	}
	give()
}
