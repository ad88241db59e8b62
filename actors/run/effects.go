package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/agent"
	"agentsvc/schemas/event"
	"agentsvc/schemas/guardrail"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Store reads the rows that a run needs. Every method reads within the named tenant.
type Store interface {
	// Run returns the row and its open steps; nil if there is none.
	Run(ctx context.Context, tenant id.TenantID, run id.RunID) (*engine.Run, error)
	// Manifest returns the manifest of an agent's version; nil if there is none.
	Manifest(ctx context.Context, tenant id.TenantID, agent id.AgentID, version int) (json.RawMessage, error)
	// Messages returns the last limit messages of a thread up to and including the
	// number upTo, oldest first, and their size. The oldest that do not fit into room bytes
	// are left out, and size counts them too.
	Messages(ctx context.Context, tenant id.TenantID, thread id.ThreadID, upTo int64, limit int, room int64) (list []engine.Message, size int64, err error)
	// Sealed returns the sealed values of a run's ended steps from one step on, in order,
	// and their size. If they are larger than room, there are no values.
	Sealed(ctx context.Context, tenant id.TenantID, run id.RunID, from int, room int64) (list []engine.Sealed, size int64, err error)
	Citing
	// Published returns the agent of a slug and its published version; not ok if
	// there is none.
	Published(ctx context.Context, tenant id.TenantID, slug string) (agent id.AgentID, version int, ok bool, err error)
	// Slug returns the slug of an agent; empty if there is none.
	Slug(ctx context.Context, tenant id.TenantID, agent id.AgentID) (string, error)
}

// Models asks the model that a manifest names. The tenant's own provider of that slug wins
// over the deployment's. The error is a *model.Error, or says that the provider could not be
// looked up.
type Models interface {
	Stream(ctx context.Context, tenant id.TenantID, m agent.Model, req *model.Request, sink model.Sink) (*model.Result, model.Price, error)
}

// Attachments reads the start of an attachment's content, at most max bytes. The error is
// fs.ErrNotExist if the content has been deleted.
type Attachments interface {
	Start(ctx context.Context, tenant id.TenantID, attachment id.AttachmentID, max int) ([]byte, error)
}

// Live publishes to the readers of a run's events (stream.Hubs).
type Live interface {
	// Begin opens the live text of a model step that has begun at seq. relayed
	// says that the embed relay gets it too.
	Begin(tenant id.TenantID, run id.RunID, seq int64, idx int, relayed bool) model.Sink
	// PublishFunc publishes committed facts, in order; it makes the frames only if
	// there are readers. last is the number of the last fact, terminal says that it ends
	// the run.
	PublishFunc(tenant id.TenantID, run id.RunID, last int64, terminal bool, frames func() []*event.Frame)
	// Abandon says that this activation publishes nothing more.
	Abandon(tenant id.TenantID, run id.RunID)
}

// Sealer seals and opens the model's history and the arguments of calls (vault.Vault).
type Sealer interface {
	Seal(place vault.AAD, plain []byte) (vault.Sealed, error)
	Open(place vault.AAD, sealed vault.Sealed) ([]byte, error)
}

// Slots limit the running runs of a tenant. The run is told msg.SlotGranted when it has a
// slot. Neither call blocks.
type Slots interface {
	Acquire(tenant id.TenantID, wish msg.AcquireSlot)
	Release(tenant id.TenantID, done msg.ReleaseSlot)
}

// Teller tells an actor something (cluster.Node). It does not block.
type Teller interface {
	Tell(a cluster.Address, message any)
}

// Effects.
type (
	// AcquireSlot requests a slot.
	AcquireSlot struct {
		Run       id.RunID
		CreatedAt time.Time
		Child     bool // it needs none
	}
	// ModelCall asks the model for the next turn, until the run's time is up.
	ModelCall struct {
		Idx   int
		Seq   int64
		Until time.Time
		Of    *State // as committed
	}
)

// Key is stable over re-performance.
func (AcquireSlot) Key() string { return "slot" }

// Key is stable over re-performance. The step that follows an abandoned one has another key.
func (e ModelCall) Key() string { return "llm/" + strconv.Itoa(e.Idx) }

// Limits of one turn.
const (
	// MaxSaid bounds the text, thinking and calls of a model, in bytes.
	MaxSaid = 4 << 20
	// maxSegments bounds how often text and thinking alternate.
	maxSegments = 1 << 14
)

// perform does the I/O of one effect.
func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	by, _ := late(e)
	left := by.Sub(a.Now())
	switch e := e.(type) {
	case AcquireSlot:
		if k.cfg.Slots == nil || e.Child {
			return msg.SlotGranted{}
		}
		k.cfg.Slots.Acquire(a.Address.Tenant, msg.AcquireSlot{Run: e.Run, CreatedAt: e.CreatedAt})
		return nil
	case ModelCall:
		began := k.cfg.Now()
		m := k.ask(ctx, left, e)
		k.turned(e, began, m)
		return m
	case Retrieve:
		return k.search(ctx, left, e)
	case Preview:
		return k.preview(ctx, left, e)
	case ToolCall:
		began := k.cfg.Now()
		m := k.call(ctx, left, e)
		k.answered(e, began, m)
		return m
	case HandOff:
		return k.handOff(ctx, left, e)
	case Deliver:
		return k.deliver(ctx, left, e)
	}
	panic(fmt.Sprintf("run: unknown effect %T", e))
}

// late is durable.Kind.Late: the time of a run passes while it waits for one of the node's places too.
func late(e durable.Effect) (by time.Time, m any) {
	switch e := e.(type) {
	case ModelCall:
		return e.Until, TimeUp{Idx: e.Idx}
	case Retrieve:
		return e.Until, TimeUp{Idx: e.Idx}
	case Preview:
		return e.Until, TimeUp{Idx: e.Call.Idx}
	case ToolCall:
		return e.Until, TimeUp{Idx: e.Call.Idx}
	case HandOff:
		return e.Until, TimeUp{Idx: e.Call.Idx}
	case Deliver:
		return e.Until, Delivered{Late: true}
	}
	return time.Time{}, nil
}

// Crash points: the model has answered and its answer is not committed; the end of the run is
// committed, and neither readers nor the thread know.
var (
	pointAnswered = failpoint.Declare("run.model_answered")
	pointEnded    = failpoint.Declare("run.before_ended")
)

var errSaidTooMuch = errors.New("run: the model said too much")

// ask performs one turn of a model. It returns nil if the turn is no longer owed.
func (k *kind) ask(ctx context.Context, left time.Duration, e ModelCall) any {
	s := e.Of
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	turn, cancel := context.WithCancelCause(bounded)
	defer cancel(nil)

	speech := k.speech(s.ID, e.Idx)
	if speech == nil { // the step or the activation has ended
		return nil
	}
	speech.begin(k.cfg.Live.Begin(s.Tenant, s.ID, e.Seq, e.Idx, !s.Agent.Manifest.WithholdsDeltas()), func() { cancel(errSaidTooMuch) }, k.cfg.Now)
	defer func() {
		// If the activation has ended, readers wait for the next one, unless that
		// one has begun a step. After a terminal frame Abandon does nothing.
		if now, ok := k.speaking.Load(s.ID); ctx.Err() != nil && (!ok || now == speech) {
			k.cfg.Live.Abandon(s.Tenant, s.ID)
		}
	}()

	var (
		req    *model.Request
		result *model.Result
		price  model.Price
	)
	place := place{of: k.requests, tenant: s.Tenant}
	defer place.give()
	err := retry(turn, func() (err error) {
		if req == nil {
			if req, err = k.request(turn, s, &place); err != nil {
				return err
			}
		}
		keeping := tool.Keeping(turn, func(give func()) { k.answers.keep(ctx, s.ID, e.Idx, give) })
		result, price, err = k.cfg.Models.Stream(keeping, s.Tenant, s.Agent.Manifest.Model, req, speech)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(context.Cause(turn), errSaidTooMuch), err == nil && size(result) > MaxSaid:
		return k.gaveUp(e, req, speech, price, &model.Error{Kind: model.Refused, Message: "The model's answer is longer than 4 MiB."})
	case err == nil:
		failpoint.Hit(pointAnswered)
		m := ModelAnswered{Idx: e.Idx, Result: result, Price: price, Segments: speech.said().Segments, Heard: speech.heard()}
		if len(result.Calls) > 0 && len(result.Calls) <= maxCalls && k.hasTools(s) {
			if m.Plan, m.Unplanned = k.plan(turn, s, result.Calls); ctx.Err() != nil {
				return nil
			}
		}
		if len(result.Calls) == 0 {
			m.Verdict = judge(turn, s.Agent.Rules, result.Text)
			if err := k.cite(turn, s, m.Verdict); err != nil {
				if m.Verdict = nil; turn.Err() != nil {
					m.Verdict = &Verdict{Late: true}
				} else {
					k.log(k.cfg.Log.Error(), s).Err(err).Msg("citations could not be read")
				}
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		return m
	case bounded.Err() != nil:
		return TimeUp{Idx: e.Idx}
	}
	var failure *model.Error
	switch {
	case errors.As(err, &failure):
		return k.gaveUp(e, req, speech, price, failure)
	case errors.Is(err, errHistory):
		return ModelFailed{Idx: e.Idx, Code: lifecycle.FailLimitExceeded, Message: passed("history", historyLimit)}
	}
	k.log(k.cfg.Log.Error(), s).Err(err).Msg("model turn could not be asked")
	return ModelFailed{Idx: e.Idx, Code: lifecycle.FailInternal, Message: internalMessage}
}

// judge checks a model's final text. It is part of the effect, because a check may take
// long: it ends when the run's time is up or the run is cancelled.
func judge(ctx context.Context, rules *guardrail.Rules, text string) *Verdict {
	a, err := rules.Check(ctx, text)
	var bad *guardrail.Violation
	switch {
	case err == nil:
		return &Verdict{Answer: a}
	case errors.As(err, &bad):
		return &Verdict{Reason: bad.Reason}
	}
	return &Verdict{Late: true}
}

// gaveUp returns the message about a failed turn. The provider bills a turn of which
// some text had arrived, but did not report the usage, so that is estimated.
func (k *kind) gaveUp(e ModelCall, req *model.Request, sp *speech, price model.Price, err *model.Error) ModelFailed {
	m := ModelFailed{
		Idx: e.Idx, Code: err.Failure(), Message: err.Message, Broken: err.Kind == model.Broken, Price: price,
	}
	if err.Kind == model.Cancelled { // not by our own contexts: ask checks them first
		m.Code, m.Interrupted = lifecycle.FailModelError, true
	}
	if m.Message == "" {
		m.Message = "The model provider failed (" + string(err.Kind) + ")."
	}
	if said := sp.said(); len(said.Segments) > 0 {
		m.TokensIn, m.TokensOut = req.EstimateInput(), model.EstimateTokens(said.Thinking)+model.EstimateTokens(said.Text)
	}
	k.log(k.cfg.Log.Debug(), e.Of).Err(err).Msg("model turn failed")
	return m
}

func (k *kind) log(e *zerolog.Event, s *State) *zerolog.Event {
	return e.Stringer("tenant", s.Tenant).Stringer("run", s.ID)
}

// size returns the bytes of a turn.
func size(r *model.Result) int {
	n := len(r.Text)
	for i := range r.Thinking {
		n += len(r.Thinking[i].Text) + len(r.Thinking[i].Signature) + len(r.Thinking[i].Redacted)
	}
	for i := range r.Calls {
		n += len(r.Calls[i].Name) + len(r.Calls[i].Args) + len(r.Calls[i].Malformed)
	}
	return n
}

// The pause between two tries to reach the storage.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

var unavailable = problem.New(problem.CodeUnavailable, "")

// retry repeats f while storage is unavailable, until ctx ends.
func retry(ctx context.Context, f func() error) error {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		err := f()
		var provider *model.Error // its connection errors are not storage's
		cutOff := errors.As(err, &provider) && provider.Kind == model.Cancelled && provider.BeforeFirstToken
		if err == nil || ctx.Err() != nil || provider != nil && !cutOff || provider == nil && !pg.IsUnavailable(err) && !errors.Is(err, unavailable) {
			return err
		}
		if !pause.For(ctx, wait) {
			return err
		}
	}
}
