package embed

import (
	"context"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// Tag is the section of the OpenAPI document.
const Tag = "Embed"

// prefix is the part of the API that browsers call from pages of other origins.
const prefix = "/v1/embed/"

// Codes of every call with a publishable key, and of every call with a session token.
var (
	codesOfKeys   = []problem.Code{problem.CodeEmbedKeyInvalid, problem.CodeEmbedKeyDisabled, problem.CodeEmbedOriginDenied, problem.CodeRateLimited}
	codesOfTokens = []problem.Code{problem.CodeEmbedUnauthorized, problem.CodeEmbedKeyDisabled, problem.CodeEmbedOriginMismatch, problem.CodeEmbedOriginDenied, problem.CodeRateLimited}
)

func codes(of []problem.Code, more ...problem.Code) []problem.Code {
	return append(append([]problem.Code(nil), of...), more...)
}

// Register adds the routes. host executes the visitors' requests.
func (e *Embed) Register(t *edge.Table, host Host) {
	e.host = host
	t.CrossOrigin(prefix)
	describe(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed/config", ID: "getEmbedConfig", Tag: Tag, Auth: byKey{e, ScopeConfig}, Scheme: edge.SchemeEmbedKey, Bucket: edge.BucketNone,
		Summary: "Read a widget's configuration", Description: "The configuration of the key in X-Svc-Embed-Key, with defaults filled in. Needs no session. Limit: 60 reads a minute per client address.",
		Codes: codesOfKeys, Answer: sampleConfig}, e.config)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed/session", ID: "beginEmbedSession", Tag: Tag, Auth: byKey{e, ScopeSession}, Scheme: edge.SchemeEmbedKey, Bucket: edge.BucketNone,
		Summary: "Begin a session",
		Description: "For a visitor of the calling page: the token is valid from its origin only. A browser that sends the visitor value of its former session stays the same visitor. " +
			"With user.token, a JWT that the tenant's back end signed (HS256, identity secret), the visitor is that end user and sees the end user's threads. " +
			"EMBED_IDENTITY_INVALID carries reason: malformed, alg, signature, expired, claims, exp_too_far, iat_in_future or not_yet_valid. Limit: 30 a minute per client address.",
		Codes: codes(codesOfKeys, problem.CodeEmbedIdentityRequired, problem.CodeEmbedIdentityInvalid, problem.CodeEmbedIdentityUnavailable), Answer: sampleSession,
		Example: map[string]any{"visitor": sampleSession.Visitor}}, e.session)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed/messages", ID: "postEmbedMessage", Tag: Tag, Auth: bySession{e}, Charge: e.chargePost, Bucket: edge.BucketNone, Status: 202, Idempotent: true,
		Summary: "Say something",
		Description: "Without thread_id a new conversation begins. One reply at a time: while the thread's previous run is queued or running the response is EMBED_RUN_IN_FLIGHT with its run_id; while it waits for an approval the message is accepted and queued behind it. " +
			"A thread holds 200 messages. Limits: 20 messages a minute per visitor, rate_limit_per_min for all visitors of the key.",
		Codes: codes(codesOfTokens, problem.CodeNotFound, problem.CodeEmbedThreadFull, problem.CodeEmbedRunInFlight, problem.CodeAgentNotPublished), Answer: samplePosted,
		Example: map[string]any{"content": "Where is my order?"}}, e.post)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed/threads", ID: "listEmbedThreads", Tag: Tag, Auth: bySession{e}, Charge: e.chargeRead, Bucket: edge.BucketNone,
		Summary: "List the visitor's conversations", Description: "Newest first. Limit: 60 reads a minute per visitor, including histories, cancels and opened streams.",
		Codes: codesOfTokens, Answer: api.List[api.EmbedThread]{Items: []api.EmbedThread{sampleThread}}}, e.threads)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/embed/threads/{id}/messages", ID: "listEmbedMessages", Tag: Tag, Auth: bySession{e}, Charge: e.chargeRead, Bucket: edge.BucketNone,
		Summary: "Read a conversation", Description: "The newest 100 messages, oldest first.",
		Codes: codes(codesOfTokens, problem.CodeNotFound), Answer: api.EmbedMessages{Items: []api.EmbedMessage{sampleMessage}}}, e.history)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/embed/runs/{id}/cancel", ID: "cancelEmbedRun", Tag: Tag, Auth: bySession{e}, Charge: e.chargeRead, Bucket: edge.BucketNone, Idempotent: true,
		Summary: "Stop an answer", Description: "A run that has ended keeps its final status, which the response shows.",
		Codes: codes(codesOfTokens, problem.CodeNotFound), Answer: sampleCancelled}, e.cancel)
	edge.HandleStream(t, edge.Route{Method: "GET", Path: "/v1/embed/runs/{id}/events", ID: "watchEmbedRun", Tag: Tag, Auth: bySession{e}, Charge: e.chargeRead, Bucket: edge.BucketNone,
		Summary: "Follow an answer",
		Description: "A redacted subset of the run's events, read with fetch: the token is never accepted in the query. Without since and Last-Event-ID everything is replayed; with the last id seen every later frame follows, exactly once. " +
			"llm.delta is withheld if the agent has output guardrails. A visitor has at most two open streams per key. A stream ends with its token: renew it and resume.",
		Codes: codes(codesOfTokens, problem.CodeNotFound, problem.CodeEmbedTooManyStreams), Frames: relayFrames}, e.watch)
	e.assetRoutes(t)
}

func (e *Embed) chargePost(ctx context.Context, c *edge.Caller) error {
	key, err := e.again(ctx, c)
	if err != nil {
		return err
	}
	return e.Limits.Post(ctx, c.Tenant, key.ID, key.RateLimitPerMin, c.Embed.Visitor)
}

func (e *Embed) chargeRead(ctx context.Context, c *edge.Caller) error {
	return e.Limits.Read(ctx, c.Tenant, c.Embed.Visitor)
}

// relayFrames are the frames of service.md, Embed relay, for the OpenAPI document.
var relayFrames = []edge.Frame{
	{Type: event.RunStarted, Data: relayStarted{sampleRunID, "running"}},
	{Type: event.LLMDelta, Data: relayDelta{0, "Your order "}, Doc: "Withheld if the agent has output guardrails."},
	{Type: event.ToolCalled, Data: relayCalled{1}},
	{Type: event.ToolResult, Data: relayResult{1, true}},
	{Type: event.RunWaiting, Data: relayNothing{}, Doc: "Someone decides in the console."},
	{Type: event.RunResumed, Data: relayNothing{}},
	{Type: event.RunCompleted, Data: relayCompleted{"succeeded", ref("Your order is on its way.")}, Doc: "Terminal. text is the whole answer."},
	{Type: event.RunFailed, Data: relayFailed{"CANCELLED"}, Doc: "Terminal."},
	{Type: event.Heartbeat, Data: relayNothing{}},
}
