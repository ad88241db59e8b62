package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/webhook"
)

// What a commit can end with besides success. Only ErrUnsettled leaves open
// whether the rows are there; the writer settles it by the operation's id.
var (
	// ErrConflict: the row moved on; another activation owns the id.
	ErrConflict = errors.New("journal: the row moved on")
	// ErrExists: an entity that this commit begins is there already, by another
	// operation; nothing of this commit was written.
	ErrExists = errors.New("journal: the entity exists")
	// ErrReplay: a row of the same Idempotency-Key was there first; nothing of
	// this commit was written. Where the row moved on as well it is ErrConflict, and
	// where the entity exists ErrExists: they say whether it was this order.
	ErrReplay = errors.New("journal: the idempotency key was used before")
	// ErrRefused: the database refuses the rows of this commit whenever they
	// are sent (a constraint, a value it cannot hold), and nobody else has moved
	// the row on or used the key: else it is ErrConflict or ErrReplay.
	ErrRefused = errors.New("journal: refused by the database")
	// ErrFenced: this process was declared dead.
	ErrFenced = errors.New("journal: this process no longer holds its lease")
	// ErrUnavailable: the database cannot be reached or is full; nothing of
	// this commit was written.
	ErrUnavailable = errors.New("journal: storage is not available")
	// ErrWithdrawn is an ErrUnavailable of new work that was not sent: its caller left, or
	// it could not have been written before its caller's deadline. The database may be well.
	ErrWithdrawn = fmt.Errorf("%w: withdrawn before it was sent", ErrUnavailable)
	// ErrUnsettled: the caller's deadline passed while the commit was under way.
	ErrUnsettled = errors.New("journal: the outcome is not known yet")
)

// Commit is everything that one decision makes durable, in one transaction: all
// of it or none. Rows of other tenants than Tenant cannot be written by it.
type Commit struct {
	Op     id.OpID
	Tenant id.TenantID
	Shard  id.Shard // of the deciding entity
	New    bool     // new work: waits behind accepted work and may be withdrawn before it is sent
	// Until is when the caller of new work stops waiting, if that is before the end of Do's
	// context. Zero: it is not.
	Until time.Time

	Idempotency *Idempotency
	Rows        []Row // of the kinds' tables, in any order: each table has its place in a flush
	Timers      []Timer
	TimersDone  []TimerKey
	Usage       []Usage
	Audit       []Audit
	// Events become a delivery for each of the tenant's enabled endpoints that hear
	// of them, as the endpoints are when the commit is written.
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

// Event is something that the tenant's webhook endpoints may hear of.
type Event struct {
	ID   id.EventID
	Type webhook.Type
	Body []byte // the envelope: the bytes of every attempt
	At   time.Time
}

// Statement is one statement of a commit that is no Row. It runs after the rows, in the
// order of the commit. Where it raises svc_missed the commit is an ErrConflict.
type Statement struct {
	SQL  string
	Args []any
}
