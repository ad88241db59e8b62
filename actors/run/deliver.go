package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/deliverable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
)

// A message may ask for a deliverable: its run renders the final text as a file, an artifact,
// before it succeeds (open-parts.md, Evidence, deliverable).
//
// The turn with the final text ends as every turn does, and its text is sealed with its step.
// Then the run is running without an open step, and owes Deliver. The artifact's row is part
// of the commit that makes the run succeed. So a crash in between asks no model again: the next
// activation reads the text from the sealed step, checks it again and renders it again. Each
// rendering stores its file under an id of its own, and only one of them gets a row: a file
// without a row is removed by the sweep of files.

// Artifacts stores the files of artifacts.
type Artifacts interface {
	// Store stores the content of an artifact, whose row follows within minutes or never. The
	// error is UNAVAILABLE while the store is away.
	Store(ctx context.Context, tenant id.TenantID, artifact id.ArtifactID, content []byte) (sum [32]byte, err error)
}

// Artifact is a stored file.
type Artifact struct {
	ID        id.ArtifactID
	Kind      deliverable.Kind
	Name      string
	MediaType string
	SizeBytes int64
	SHA256    [32]byte
}

// Deliver renders and stores the final text until the run's time is up.
type Deliver struct {
	Kind  deliverable.Kind
	Until time.Time
	Of    *State // as committed
}

const deliverKey = "deliver"

// Key is stable over re-performance.
func (Deliver) Key() string { return deliverKey }

// Delivered is the outcome: the artifact with the answer that it shows, or why there is none.
type Delivered struct {
	Verdict  *Verdict
	Artifact *Artifact
	Reason   string // why the deliverable cannot be made; safe to show
	Late     bool   // the run's time was up
}

// Made is a fact: an artifact of a run that succeeds.
type Made struct{ Artifact *Artifact }

// cannotDeliver is the message of a run whose deliverable cannot be made.
const cannotDeliver = "The deliverable could not be made"

// The machine's part.

// deliverableOf returns the kind of file that a run's input asks for, empty if none.
func deliverableOf(input json.RawMessage) deliverable.Kind {
	if !bytes.Contains(input, []byte(`"deliverable"`)) {
		return ""
	}
	var in struct {
		Options struct {
			Deliverable deliverable.Kind `json:"deliverable"`
		} `json:"options"`
	}
	if json.Unmarshal(input, &in) != nil { // an input of another shape, as sent
		return ""
	}
	return in.Options.Deliverable
}

// succeed ends the run with an accepted answer; before that it delivers, if the input asks for it.
func (c *change) succeed(v *Verdict) {
	if k := deliverableOf(c.s.Input); k != "" && !c.s.Delivers {
		if !k.Valid() {
			c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, cannotDeliver+": its kind is not known.")
			return
		}
		c.s.Delivers, c.s.Final = true, v
		return
	}
	now := c.now
	c.s.Delivers, c.s.Final = false, nil
	c.s.Status, c.s.FinishedAt, c.s.Output = lifecycle.RunSucceeded, &now, showOutput(v.Answer)
	c.seq()
	c.fact(Ended{Reply: v.Answer.Text, Citations: v.Citations})
}

// delivered ends the run with the outcome of its deliverable.
func (c *change) delivered(m Delivered) bool {
	if c.s.Status != lifecycle.RunRunning || !c.s.Delivers {
		return false
	}
	c.clock()
	if m.Late {
		c.s.Ran = max(c.s.Ran, c.s.maxTime())
	}
	switch {
	case c.overTime():
	case m.Reason != "" || m.Artifact == nil || m.Verdict == nil:
		reason := m.Reason
		if reason == "" {
			reason = cannotDeliver + "."
		}
		c.end(lifecycle.RunFailed, lifecycle.FailOutputInvalid, reason)
	default:
		c.fact(Made{m.Artifact})
		c.succeed(m.Verdict)
	}
	return true
}

// owedDelivery returns the effect of a run that delivers.
func owedDelivery(s *State) []durable.Effect {
	return []durable.Effect{Deliver{Kind: deliverableOf(s.Input), Until: s.deadline(), Of: s}}
}

// The effect.

// pointDelivered: the file is stored, and the commit that names it is not begun.
var pointDelivered = failpoint.Declare("run.deliverable_stored")

// errUnanswered says that the run's last step is no final text.
var errUnanswered = errors.New("run: the final text is not there")

// deliver renders and stores the file. It returns nil if the file is no longer owed.
func (k *kind) deliver(ctx context.Context, left time.Duration, e Deliver) any {
	s := e.Of
	bounded, stop := context.WithTimeout(ctx, left)
	defer stop()
	out, err := k.render(bounded, s, e.Kind)
	bad := new(deliverable.Fault)
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		failpoint.Hit(pointDelivered)
		return *out
	case errors.As(err, &bad):
		return Delivered{Reason: cannotDeliver + ": " + bad.Reason + "."}
	case bounded.Err() != nil:
		return Delivered{Late: true}
	}
	k.log(k.cfg.Log.Error(), s).Err(err).Msg("deliverable could not be made")
	return Delivered{Reason: cannotDeliver + "."}
}

// render makes and stores the artifact of a run.
func (k *kind) render(ctx context.Context, s *State, kind deliverable.Kind) (*Delivered, error) {
	if k.cfg.Artifacts == nil {
		return nil, errors.New("run: artifacts have no store")
	}
	v := s.Final
	if v == nil {
		if err := retry(ctx, func() (err error) { v, err = k.final(ctx, s); return err }); err != nil {
			return nil, err
		}
	}
	switch {
	case v.Late:
		return &Delivered{Late: true}, nil
	case v.Reason != "": // the same text passed before
		return &Delivered{Reason: v.Reason}, nil
	}
	// A rendering may take seconds of CPU and a hundred MiB: tenants take turns.
	if err := k.rendering.Take(ctx, s.Tenant); err != nil {
		return nil, err
	}
	defer k.rendering.Give(s.Tenant)
	file, err := deliverable.Render(ctx, kind, v.Answer.Text, k.cfg.Now())
	if err != nil {
		return nil, err
	}
	a := &Artifact{ID: id.ArtifactID{UUID: id.New(s.ID.Shard())}, Kind: kind, Name: file.Name, MediaType: file.MediaType, SizeBytes: int64(len(file.Content))}
	err = retry(ctx, func() (err error) {
		a.SHA256, err = k.cfg.Artifacts.Store(ctx, s.Tenant, a.ID, file.Content)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Delivered{Verdict: v, Artifact: a}, nil
}

// final reads the final text from the run's last step and checks it again.
func (k *kind) final(ctx context.Context, s *State) (*Verdict, error) {
	last := s.Steps - 1
	steps, _, err := k.cfg.Store.Sealed(ctx, s.Tenant, s.ID, last, math.MaxInt64)
	if err != nil {
		return nil, fmt.Errorf("read the run's last step: %w", err)
	}
	var m model.Message
	if len(steps) == 1 {
		if err := k.open(s, last, steps[0].Value, &m); err != nil {
			return nil, err
		}
	}
	if m.Role != model.Assistant || len(m.Calls) > 0 {
		return nil, errUnanswered
	}
	v := judge(ctx, s.Agent.Rules, m.Text)
	return v, k.cite(ctx, s, v)
}

// made returns the row of an artifact.
func made(s *State, a *Artifact, now time.Time) journal.Row {
	return &engine.ArtifactInsert{ID: a.ID, Run: s.ID, Kind: string(a.Kind), Name: a.Name, MediaType: a.MediaType, SizeBytes: a.SizeBytes, SHA256: a.SHA256, CreatedAt: now}
}
