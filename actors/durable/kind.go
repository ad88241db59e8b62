package durable

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
)

// Writer makes commits durable (journal.Writer).
type Writer interface {
	// Do returns nil when the commit is durable, else an error of package journal.
	Do(ctx context.Context, c *journal.Commit) error
	// Basis is what Commit.Basis is for a decision whose rows are made from now on.
	Basis() uint64
}

// Other is the error of Kind.Load for a row that belongs to another kind. The host passes the
// message on to the actor of that kind with the same id: a sender that knows an id need not
// know its kind.
type Other struct{ Kind string }

func (e *Other) Error() string { return "durable: the row belongs to the kind " + e.Kind }

// Loaded is a committed row: its state and the guard of its swap. Load and Seed set Version
// and Epoch of the row. When the host passes a Loaded, SetEpoch is the epoch of the
// activation, so the guard can be copied into the commit's update. Version 0 means that the
// row does not exist yet: Rows then returns inserts, and the new row has version 1 and
// epoch 0.
type Loaded[S any] struct {
	State S
	Guard journal.Guard
}

// Activation identifies the activation that performs an effect. Of two activations of one
// address that committed, the later one has the higher Epoch.
type Activation struct {
	Address cluster.Address
	Epoch   int64

	now, at time.Time // of the decision that owes the effect, by the clock and by the monotonic one
}

// Now returns the time by the clock from which the effect has its times: it passes as for a
// decision, and a step of the clock since then does not count.
func (a Activation) Now() time.Time { return a.now.Add(time.Since(a.at)) }

// Kind is one kind of actors on this host. Name, Machine, Load and Rows are required, and
// Perform if the machine owes effects.
type Kind[S any] struct {
	Name    string
	Machine Machine[S]

	// Load reads the row. A *problem.Error (NOT_FOUND if there is no row) is the reply to
	// askers; told messages are dropped and the activation ends. An *Elsewhere names the
	// member that has an activation of the row, an *Other the kind to which the row belongs.
	// Every other error means that storage is unavailable.
	Load func(ctx context.Context, a cluster.Address) (Loaded[S], error)

	// Seed, if set, may return the row from the first message of an activation, which was
	// just committed, so that the activation starts without a read. If the first commit shows
	// that the seed is old, the host reads the row. Until then it performs the effects that
	// the seed owes, under their usual keys.
	Seed func(a cluster.Address, msg any) (Loaded[S], bool)

	// Create, if set, recognises the message that begins an entity and returns the state
	// before it. The machine decides on msg with that state, without Activated, and Rows
	// inserts the row (Version 0). If the row exists, the host reads it and the machine
	// decides on msg again, so that a message that comes twice gets the same answer. A
	// decision without a change creates nothing, and the activation ends.
	Create func(a cluster.Address, msg any) (S, bool)

	// Rows returns the commit of a decision; nil if the decision changes only the memory of
	// the activation. A commit with Rows inserts or swaps the entity's own row. One without
	// (timers alone) leaves the row and its version as they are, so nothing fences it: it may
	// say only what holds for every activation. The host sets Op, Tenant, Shard, Until and Basis.
	// msg is the message that led to the decision, also if the machine got it as Answered. Rows
	// is called again for the same decision if what it remembers of endpoints was forgotten
	// before the commit was written (journal.ErrOutdated).
	Rows func(a cluster.Address, prev Loaded[S], d Decision[S], msg any, op id.OpID, now time.Time) *journal.Commit

	// Read, required if the machine has questions, returns the answer to one. A
	// *problem.Error is the reply to the asker. Every other error means that storage is
	// unavailable. Read runs outside of the mailbox; ctx ends with the message's deadline and
	// with the activation.
	Read func(ctx context.Context, a cluster.Address, question any) (any, error)

	// After, if set, runs when a decision is durable, to publish frames and tell other actors.
	// It runs inside Receive and must not block. A crash may skip it, so nothing may depend on
	// it that is not owed as well.
	After func(a cluster.Address, prev, next S, d Decision[S])

	// Perform does the I/O of one effect and returns its result as a message, or nil. ctx ends
	// with the activation, or when the effect is no longer owed; the result is then dropped.
	Perform func(ctx context.Context, a Activation, e Effect) any

	// Late, if set, returns by when e must have a place (Config.MaxEffects), and the message that
	// the machine gets in place of its result otherwise; nil: it waits for as long as it is owed.
	Late func(e Effect) (by time.Time, m any)

	// Finishes, if set, reports whether an activation waits for e, once it is in flight, before
	// it leaves a node that has lost its shard or is about to stop. Until then the machine
	// gets each message as Leaving, no new effect is performed, and the owner learns by Holder
	// that it has to wait.
	Finishes func(e Effect) bool

	// Left, where set, is called when an activation has left its node for the owner of
	// its shard to go on.
	Left func(a cluster.Address)

	// Forget, where set, is called when an activation has ended, after its effects were
	// cancelled and before the next activation of the address begins on this node. The
	// kind drops what it keeps in memory for it.
	Forget func(a cluster.Address)

	// Shift, if set, returns s after the clock was set by d. The moments from which the activation
	// counts a duration move with the clock, so that the step is not counted.
	Shift func(s S, d time.Duration) S

	// Idle is how long an activation that owes nothing stays in memory after
	// its last message; 0 means not at all.
	Idle time.Duration

	// Done, where set, lets an activation leave at once, before Idle, in a state
	// that expects nothing any more.
	Done func(S) bool
}

// Config configures the host of a kind.
type Config struct {
	Log           zerolog.Logger
	Now           func() time.Time // default time.Now; the cluster's clock in the service
	MaxEffects    int              // effects at a time; default 1024
	CommitTimeout time.Duration    // default 5 s
}

// Register makes n the host of k. It is called before n starts.
func Register[S any](n *cluster.Node, w Writer, k Kind[S], cfg Config) {
	if k.Name == "" || k.Machine == nil || k.Load == nil || k.Rows == nil {
		panic("durable: a kind needs Name, Machine, Load and Rows")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxEffects <= 0 {
		cfg.MaxEffects = 1024
	}
	if cfg.CommitTimeout <= 0 {
		cfg.CommitTimeout = 5 * time.Second
	}
	rt := &hosting[S]{
		Kind: k, cfg: cfg, node: n, writer: w, metrics: metricsOf(k.Name),
		effects: pool{max: cfg.MaxEffects, start: n.Go},
	}
	n.Register(k.Name, func(a cluster.Address) cluster.Behavior {
		h := &Host[S]{k: rt, addr: a}
		if k.Finishes != nil {
			return finisher[S]{h}
		}
		return h
	})
	n.OnStop(rt.effects.wait)
}

// hosting is shared by all activations of a kind.
type hosting[S any] struct {
	Kind[S]
	cfg     Config
	node    *cluster.Node
	writer  Writer
	metrics kindMetrics
	effects pool
	waiting sync.Map // keys: waiting
}
