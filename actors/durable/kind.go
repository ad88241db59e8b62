package durable

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
)

// ErrMoved is the reply of an activation that lost its row to another one;
// nothing was done. cluster.Node.Ask sends again on it.
var ErrMoved = cluster.ErrMoved

// Writer makes commits durable. It returns nil once the commit is, else one of
// the errors of package journal.
type Writer interface {
	Do(ctx context.Context, c *journal.Commit) error
}

// Loaded is a committed row: its state and the swap that replaces it. In what
// the host passes, Guard is ready to be copied into the commit's update: Version
// and Epoch are the row's, SetEpoch is the activation's. Load and Seed set
// Version and Epoch only. Version 0 is a row that does not exist yet: Rows then
// makes the inserts, the new row having version 1 and epoch 0.
type Loaded[S any] struct {
	State S
	Guard journal.Guard
}

// Activation says who performs an effect. Epoch belongs to the activation: of
// two activations of one address the later one that committed has the higher.
type Activation struct {
	Address cluster.Address
	Epoch   int64
}

// Kind is one actor kind on this host. Name, Machine, Load and Rows are
// required, Perform where the machine owes anything.
type Kind[S any] struct {
	Name    string
	Machine Machine[S]

	// Load reads the row. A *problem.Error, NOT_FOUND where there is no row, is
	// replied to askers, told messages are dropped and the activation ends.
	// An *Elsewhere says that another member's activation is at work on the row.
	// Every other error counts as no storage.
	Load func(ctx context.Context, a cluster.Address) (Loaded[S], error)

	// Seed, where set, may find the row just committed in the first message, so
	// that the activation starts without a read. A seed that turns out to be old
	// at its first commit is replaced by a read. Until then what it owes is
	// performed, under the same keys as ever.
	Seed func(a cluster.Address, msg any) (Loaded[S], bool)

	// Create, where set, recognises the message that begins an entity, and
	// returns the state before the beginning. The machine decides on msg with
	// that state and no Activated; Rows sees Version 0 and inserts. If the row
	// turns out to exist the host reads it, and the machine decides on msg again
	// with what is there: a message that comes twice is answered as the first
	// time. Nothing decided, nothing created: the activation ends.
	Create func(a cluster.Address, msg any) (S, bool)

	// Rows makes the commit of a decision; nil where the decision only changes what the
	// activation remembers. The host sets Op, Tenant, Shard and Until. msg is the message
	// that led to the decision, also where it was decided on by Answered.
	Rows func(a cluster.Address, prev Loaded[S], d Decision[S], msg any, op id.OpID, now time.Time) *journal.Commit

	// Read, where the machine has questions, answers one. A *problem.Error is replied to
	// the asker. Every other error counts as no storage. It runs outside of the mailbox;
	// ctx ends with the message's deadline and with the activation.
	Read func(ctx context.Context, a cluster.Address, question any) (any, error)

	// After, where set, runs when a decision is durable: publish frames, tell
	// others. It runs inside Receive and must not block. It may be skipped by a
	// crash, so nothing may depend on it that is not owed as well.
	After func(a cluster.Address, prev, next S, d Decision[S])

	// Perform does the I/O of one effect and returns the message that says how
	// it went, nil for nothing to say. ctx ends with the activation and when the
	// effect is no longer owed; the result is dropped then.
	Perform func(ctx context.Context, a Activation, e Effect) any

	// Finishes, where set, reports whether e is finished, once it is under way, before
	// the activation leaves a node that does not own its shard any more, or that is
	// about to stop. Until then the machine is given each message as Leaving, nothing
	// new is performed, and the owner finds by Holder that it has to wait.
	Finishes func(e Effect) bool

	// Left, where set, is called when an activation has left its node for the owner of
	// its shard to go on.
	Left func(a cluster.Address)

	// Forget, where set, is called when an activation has ended, after its effects were
	// cancelled and before the next activation of the address begins on this node. The
	// kind drops what it keeps in memory for it.
	Forget func(a cluster.Address)

	// Idle is how long an activation that owes nothing stays in memory after
	// its last message; 0 means not at all.
	Idle time.Duration

	// Done, where set, lets an activation leave at once, before Idle, in a state
	// that expects nothing any more.
	Done func(S) bool
}

// Config is what the host needs besides the kind.
type Config struct {
	Log           zerolog.Logger
	Now           func() time.Time // default time.Now; the cluster's clock in the service
	MaxEffects    int              // performed at a time; default 1024
	CommitTimeout time.Duration    // default 5 s
}

// Register makes n host k. It is called before n starts.
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
		effects: pool{max: cfg.MaxEffects},
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

// hosting is what all activations of a kind share.
type hosting[S any] struct {
	Kind[S]
	cfg     Config
	node    *cluster.Node
	writer  Writer
	metrics kindMetrics
	effects pool
}
