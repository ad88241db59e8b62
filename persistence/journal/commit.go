package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/webhook"
)

// Errors of a commit. Only ErrUnsettled leaves open whether the rows exist; the writer
// settles that afterwards.
var (
	// ErrConflict: the row has changed; another activation owns the entity.
	ErrConflict = errors.New("journal: the row moved on")
	// ErrExists: the entity that this commit begins exists, by another operation; nothing of
	// this commit was written.
	ErrExists = errors.New("journal: the entity exists")
	// ErrReplay: the Idempotency-Key was used by an earlier commit; nothing of this commit
	// was written. If the row has changed too the error is ErrConflict, and if the entity
	// exists ErrExists.
	ErrReplay = errors.New("journal: the idempotency key was used before")
	// ErrRefused: the database refuses the rows of this commit whenever they are sent (a
	// constraint, a value it cannot hold). If the row has changed or the key was used, the
	// error is ErrConflict or ErrReplay instead.
	ErrRefused = errors.New("journal: refused by the database")
	// ErrFenced: this process was declared dead.
	ErrFenced = errors.New("journal: this process no longer holds its lease")
	// ErrUnavailable: the database cannot be reached or is full; nothing of this commit was
	// written.
	ErrUnavailable = errors.New("journal: storage is not available")
	// ErrWithdrawn is an ErrUnavailable of new work that was not sent: its caller left, or it
	// would have been written after its caller's deadline.
	ErrWithdrawn = fmt.Errorf("%w: withdrawn before it was sent", ErrUnavailable)
	// ErrOutdated: data that the commit was decided on was revoked before the commit was sent
	// (Commit.Basis). Nothing was written; the actor decides again.
	ErrOutdated = errors.New("journal: the commit was decided on data that has been revoked since; nothing was written")
	// ErrUnsettled: the caller's context ended while the commit was in flight.
	ErrUnsettled = errors.New("journal: the outcome is not known yet")
)

// Commit is everything that one decision makes durable, in one transaction: all of it or
// none. It cannot write rows of another tenant than Tenant.
type Commit struct {
	Op     id.OpID
	Tenant id.TenantID
	Shard  id.Shard // of the deciding entity
	New    bool     // new work: waits behind accepted work and may be withdrawn before it is sent
	// Until is when the caller of new work stops waiting, if that is before the deadline of
	// the context of Do; otherwise zero.
	Until time.Time

	// Basis is Writer.Basis as it was before the decision looked at what the node remembers of
	// the tenant's endpoints. If that was forgotten since, the commit may lack an event: it is not
	// written, and the error is ErrOutdated. Zero: the commit does not depend on it.
	Basis uint64

	Idempotency *Idempotency
	Rows        []Row // of the tables of the kinds, in any order
	Timers      []Timer
	TimersDone  []TimerKey
	Usage       []Usage
	Audit       []Audit
	// Events become a delivery for each of the tenant's enabled endpoints that subscribe to
	// them at the time of the commit.
	Events     []Event
	Statements []Statement // for what no table describes
}

// Idempotency remembers the first answer to an Idempotency-Key.
type Idempotency struct {
	Digest      [32]byte // of principal, method, path and key
	Fingerprint [32]byte // of the request
	Status      int
	Response    []byte // sealed
	At          time.Time
}

// Remember returns the row of an Idempotency-Key that came with a message at that time, nil for none.
func Remember(i *msg.Idempotency, at time.Time) *Idempotency {
	if i == nil {
		return nil
	}
	return &Idempotency{Digest: i.Digest, Fingerprint: i.Fingerprint, Status: i.Status, Response: i.Response, At: at}
}

// Guard is the compare-and-swap on an actor's row: the swap succeeds only while
// the row has Version and Epoch, and leaves Version+1 and SetEpoch.
type Guard struct {
	Version  int64
	Epoch    int64
	SetEpoch int64
}

// TimerKey names a due moment of an actor.
type TimerKey struct {
	Kind   string
	Entity id.UUID
	Name   string
}

// Timer sets or moves a due moment.
type Timer struct {
	TimerKey
	DueAt time.Time
}

// Usage is one billed use.
type Usage struct {
	ID        id.UsageID
	At        time.Time
	Kind      lifecycle.UsageKind
	Run       *id.RunID
	Agent     *id.AgentID
	Model     string
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
	Detail    json.RawMessage
}

// Audit is one row of the audit log.
type Audit struct {
	ID         id.AuditID
	At         time.Time
	Actor      string
	Action     string
	TargetKind string
	TargetID   id.UUID
	IP         string
	Detail     json.RawMessage
}

// Event is an event for the tenant's webhook endpoints.
type Event struct {
	ID   id.EventID
	Type webhook.Type
	Body []byte // the envelope: the bytes of every attempt
	At   time.Time
}

// Statement is a statement of a commit that is not a Row. It runs after the rows, in the
// order of the commit. If it raises svc_missed the commit is an ErrConflict.
type Statement struct {
	SQL     string
	Args    []any
	Changes []msg.Change // the objects that it changes
}

// Changed is a Row that changes an object which is watched.
type Changed interface{ Changed() msg.Change }

// Changes calls f with each object that the commit changes, some of them more than once.
func (c *Commit) Changes(f func(msg.Change)) {
	for _, r := range c.Rows {
		if w, ok := r.(Changed); ok {
			f(w.Changed())
		}
	}
	for _, s := range c.Statements {
		for _, change := range s.Changes {
			f(change)
		}
	}
	for i := range c.Audit {
		f(msg.Change{Kind: c.Audit[i].TargetKind, ID: c.Audit[i].TargetID})
	}
}
