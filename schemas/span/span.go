// Package span says what the service tells a collector of traces about its work: one type for
// each kind of span. The types have no field for contents: arguments, outputs, prompts, URLs
// and e-mail addresses cannot be told.
package span

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// Request is an HTTP request that was answered.
type Request struct {
	Name   string // operation id of the route; empty: no route matched
	Method string // empty: a method that HTTP does not define
	Route  string // path of the route, with the names of its parameters
	Status int
	ID     string // the X-Request-Id
	Tenant id.TenantID
	Run    id.RunID // the run that the request started; zero: none
	// Parent is the request's traceparent field, valid only during the call.
	Parent []byte
	Began  time.Time
	Took   time.Duration // of a stream: until it began
}

// Run is a run that has ended.
type Run struct {
	Tenant       id.TenantID
	ID           id.RunID
	Parent       *id.RunID     // the workflow's run that started it
	Agent        id.AgentID    // zero: a run of a workflow
	Workflow     id.WorkflowID // zero: a run of an agent
	Began, Ended time.Time     // Began is when it started, or was accepted if it never started
	Status       lifecycle.RunStatus
	Code         lifecycle.Failure // empty: it did not fail
}

// Step is a model turn or a tool call of a run that was answered.
type Step struct {
	Tenant       id.TenantID
	Run          id.RunID
	Idx          int
	Kind         lifecycle.StepKind // StepLLM or StepTool
	Name         string             // of the model or the tool
	OK           bool
	Began, Ended time.Time
}

// Delivery is one attempt of a webhook delivery.
type Delivery struct {
	Tenant       id.TenantID
	Webhook      id.WebhookID
	ID           id.DeliveryID
	Attempt      int
	Status       int // of the response; 0: there was none
	OK           bool
	Began, Ended time.Time
}
