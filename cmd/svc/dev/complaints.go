package dev

import (
	"context"
	_ "embed" // of complaints.yaml
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/flow/source"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// The sample workflow: a hook receives a complaint about an order, an agent classifies it, a
// person decides about a large refund, the order desk pays, and an agent writes the answer.

const (
	sampleWorkflow = "complaints"
	complaintsFile = "complaints.yaml"
)

//go:embed complaints.yaml
var complaints string

// complaint is a complaint that needs a person's decision.
const complaint = `{"order_id":"1002","amount":80,"text":"The desk arrived scratched. I want a refund."}`

// definition returns the definition of the sample workflow with the ids of its agents.
func (s *sample) definition() string {
	return strings.NewReplacer("$CLASSIFIER", s.ClassifierID, "$WRITER", s.WriterID, "$SERVER", sampleServer).Replace(complaints)
}

// makeWorkflow makes the published sample workflow, its agents and its hook. A workflow, an
// agent or a hook that the tenant has removed stays removed.
func (s *sample) makeWorkflow(ctx context.Context, view store.View, tx *store.Tx) (err error) {
	const instructions = "A customer complains about an order. "
	if err := s.makeAgent(ctx, view, tx, &s.ClassifierID, "complaint-classifier", &api.AgentCreate{Name: "Complaint classifier", Description: "Used by the sample workflow of svc dev."},
		map[string]any{"model": simulated, "instructions": instructions + "Answer with one word: refund if the customer wants money back, else question."}); err != nil {
		return err
	}
	if err := s.makeAgent(ctx, view, tx, &s.WriterID, "complaint-writer", &api.AgentCreate{Name: "Complaint writer", Description: "Used by the sample workflow of svc dev."},
		map[string]any{"model": simulated, "instructions": instructions + "You get the complaint, and what was done about it. Write a short, kind answer to the customer."}); err != nil {
		return err
	}
	if s.WorkflowID == "" {
		if s.WorkflowID, err = s.publishWorkflow(ctx, view, tx); err != nil {
			return err
		}
	}
	if s.HookID != "" {
		return nil
	}
	u, err := id.Parse(s.WorkflowID)
	if err != nil {
		return err
	}
	target := id.WorkflowID{UUID: u}
	triggers, err := view.Triggers(ctx, id.TriggerID{}, store.All)
	if err != nil {
		return err
	}
	const name = "Complaints about orders"
	for _, there := range triggers {
		if there.Name == name && there.Target.WorkflowID != nil && *there.Target.WorkflowID == target { // its secret is lost with the file
			turned, err := tx.RotateTrigger(ctx, there.ID)
			if err != nil {
				return err
			}
			s.HookID, s.HookSecret = there.ID.String(), turned.Secret
			return nil
		}
	}
	made, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: name, Kind: lifecycle.TriggerHook, Target: api.TriggerTarget{WorkflowID: &target}})
	if err != nil {
		return err
	}
	s.HookID, s.HookSecret = made.ID.String(), made.Secret
	return nil
}

func (s *sample) publishWorkflow(ctx context.Context, view store.View, tx *store.Tx) (string, error) {
	there, err := view.Workflows(ctx, id.WorkflowID{}, store.All)
	if err != nil {
		return "", err
	}
	for _, w := range there {
		if w.Slug == sampleWorkflow {
			return w.ID.String(), nil
		}
	}
	read, err := source.Read([]byte(s.definition()))
	if err != nil {
		return "", err
	}
	plan, _, err := flow.Parse(ctx, "definition", read.JSON)
	if err != nil {
		return "", err
	}
	slug := sampleWorkflow
	w, err := tx.CreateWorkflow(ctx, &api.WorkflowCreate{Name: "Complaints about orders", Slug: &slug})
	if err != nil {
		return "", err
	}
	if _, _, err := tx.CreateWorkflowVersion(ctx, w.ID, json.RawMessage(read.JSON), plan.Definition()); err != nil {
		return "", err
	}
	if _, _, err := tx.PublishWorkflow(ctx, w.ID, 1); err != nil {
		return "", err
	}
	return w.ID.String(), nil
}

// writeWorkflow writes the sample workflow to the data directory, to be read and changed. A
// file that is there stays as it is.
func (s *sample) writeWorkflow() error {
	f, err := os.OpenFile(filepath.Join(s.DataDir, complaintsFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.definition())
	return errors.Join(err, f.Close())
}
