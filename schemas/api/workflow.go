package api

import (
	"encoding/json"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Workflow as open-parts.md shows it.
type Workflow struct {
	ID               id.WorkflowID `json:"id" doc:"The id, a version 7 UUID."`
	Slug             string        `json:"slug" doc:"Unique in the tenant."`
	Name             string        `json:"name" doc:"For people."`
	NodeID           *id.NodeID    `json:"node_id" doc:"The org node it belongs to: whose managers decide its gates, and whose grants its tools use."`
	PublishedVersion *int          `json:"published_version" doc:"What new runs take; null: none yet."`
	LatestVersion    int           `json:"latest_version" doc:"0: there is none yet"`
	CreatedAt        time.Time     `json:"created_at" doc:"UTC."`
	UpdatedAt        time.Time     `json:"updated_at" doc:"UTC."`
}

// WorkflowVersion is one version of a workflow.
type WorkflowVersion struct {
	WorkflowID  id.WorkflowID           `json:"workflow_id" doc:"The workflow."`
	Version     int                     `json:"version" doc:"1, 2, …"`
	Status      lifecycle.VersionStatus `json:"status"`
	Definition  Definition              `json:"definition" doc:"As it was sent."`
	CreatedAt   time.Time               `json:"created_at" doc:"UTC."`
	PublishedAt *time.Time              `json:"published_at" doc:"When it was last published; null: never."`
}

// WorkflowCreate is the body of POST /v1/workflows.
type WorkflowCreate struct {
	Name       string     `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Slug       *string    `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"made from the name when omitted"`
	NodeID     *id.NodeID `json:"node_id,omitempty" nullable:"true" doc:"An org node of the tenant."`
	Definition Definition `json:"definition,omitempty" doc:"of version 1"`
}

// WorkflowPatch is the body of PATCH /v1/workflows/{id}.
type WorkflowPatch struct {
	Name   *string        `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Slug   *string        `json:"slug,omitempty" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"Unique in the tenant."`
	NodeID Opt[id.NodeID] `json:"node_id,omitzero" doc:"null takes it off its org node."`
}

// WorkflowVersionCreate is the body of POST /v1/workflows/{id}/versions.
type WorkflowVersionCreate struct {
	Definition Definition `json:"definition"`
}

// WorkflowAnswer wraps a workflow, with the version that the call made.
type WorkflowAnswer struct {
	Workflow *Workflow        `json:"workflow" null:"false"`
	Version  *WorkflowVersion `json:"version,omitempty" doc:"The version that the call made."`
}

// WorkflowPublished is the response to a publish.
type WorkflowPublished struct {
	Workflow *Workflow        `json:"workflow" null:"false"`
	Version  *WorkflowVersion `json:"version" null:"false" doc:"The version that was published."`
	Warnings []string         `json:"warnings" doc:"What a run could fail on as things are now; empty: nothing."`
}

// WorkflowVersionAnswer wraps a new version.
type WorkflowVersionAnswer struct {
	Version  *WorkflowVersion `json:"version" null:"false"`
	Warnings []string         `json:"warnings" doc:"What a run could fail on as things are now; empty: nothing."`
}

// WorkflowAndVersions is the response of GET and PATCH /v1/workflows/{id}.
type WorkflowAndVersions struct {
	Workflow   *Workflow         `json:"workflow" null:"false"`
	Versions   []WorkflowVersion `json:"versions" doc:"Newest first. They end early at 4 MiB of JSON, after at least one version."`
	NextCursor Opt[string]       `json:"next_cursor,omitzero" doc:"When limit or cursor is given, and when versions were left out; null: the last page."`

	whole *Whole[WorkflowVersion]
}

// WithVersions returns a workflow with a list of its versions.
func WithVersions(w *Workflow, l *Whole[WorkflowVersion]) *WorkflowAndVersions {
	return &WorkflowAndVersions{Workflow: w, Versions: l.Items, NextCursor: l.NextCursor, whole: l}
}

// MarshalJSON writes versions as an array, never as null, and ends them at MaxListBytes.
func (w WorkflowAndVersions) MarshalJSON() ([]byte, error) {
	workflow, err := json.Marshal(w.Workflow)
	if err != nil {
		return nil, err
	}
	var at func(int) string
	if w.whole != nil {
		at = w.whole.at
	}
	return encodeList(`{"workflow":`+string(workflow)+`,"versions":[`, w.Versions, &w.NextCursor, at)
}

// WorkflowStart is the body of POST /v1/workflows/{id}/runs and of test-run.
type WorkflowStart struct {
	Input     Value  `json:"input,omitempty" doc:"What templates and expressions read as input."`
	Variables Object `json:"variables,omitempty" doc:"Values of variables, over those of the definition."`
}

// WorkflowEvent is the body of POST /v1/workflows/runs/{runId}/events.
type WorkflowEvent struct {
	Name    string `json:"name" minLength:"1" maxLength:"1000" doc:"That of the event for which a node waits."`
	Payload Value  `json:"payload,omitempty" doc:"The node's output: an object becomes its json, another value its text."`
	ID      string `json:"id,omitempty" maxLength:"255" doc:"An event with the id of an earlier one of the run is accepted and has no effect."`
}

// WorkflowEventAccepted is the response to it.
type WorkflowEventAccepted struct {
	RunID    id.RunID `json:"run_id" doc:"The run's id."`
	Accepted bool     `json:"accepted" doc:"Always true."`
}
