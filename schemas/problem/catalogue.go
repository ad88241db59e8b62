package problem

// Codes from service.md, Errors, then our own (open-parts.md).
const (
	CodeUnauthorized                    Code = "UNAUTHORIZED"
	CodeTenantRequired                  Code = "TENANT_REQUIRED"
	CodeForbidden                       Code = "FORBIDDEN"
	CodeValidation                      Code = "VALIDATION"
	CodeNotFound                        Code = "NOT_FOUND"
	CodeRateLimited                     Code = "RATE_LIMITED"
	CodeInvalidSignature                Code = "INVALID_SIGNATURE"
	CodeInvalidBody                     Code = "INVALID_BODY"
	CodeUnknownTool                     Code = "UNKNOWN_TOOL"
	CodeAgentNotPublished               Code = "AGENT_NOT_PUBLISHED"
	CodeWorkflowNotPublished            Code = "WORKFLOW_NOT_PUBLISHED"
	CodeTriggerDisabled                 Code = "TRIGGER_DISABLED"
	CodeSlugTaken                       Code = "SLUG_TAKEN"
	CodeInvalidURL                      Code = "INVALID_URL"
	CodeAlreadyDecided                  Code = "ALREADY_DECIDED"
	CodeInvalidArgs                     Code = "INVALID_ARGS"
	CodeMCPUnreachable                  Code = "MCP_UNREACHABLE"
	CodeNameTaken                       Code = "NAME_TAKEN"
	CodeEmbedKeyInvalid                 Code = "EMBED_KEY_INVALID"
	CodeEmbedKeyDisabled                Code = "EMBED_KEY_DISABLED"
	CodeEmbedOriginDenied               Code = "EMBED_ORIGIN_DENIED"
	CodeEmbedOriginMismatch             Code = "EMBED_ORIGIN_MISMATCH"
	CodeEmbedUnauthorized               Code = "EMBED_UNAUTHORIZED"
	CodeEmbedIdentityRequired           Code = "EMBED_IDENTITY_REQUIRED"
	CodeEmbedIdentityInvalid            Code = "EMBED_IDENTITY_INVALID"
	CodeEmbedIdentityUnavailable        Code = "EMBED_IDENTITY_UNAVAILABLE"
	CodeEmbedRunInFlight                Code = "EMBED_RUN_IN_FLIGHT"
	CodeEmbedThreadFull                 Code = "EMBED_THREAD_FULL"
	CodeEmbedTooManyStreams             Code = "EMBED_TOO_MANY_STREAMS"
	CodeEmbedBundleUnavailable          Code = "EMBED_BUNDLE_UNAVAILABLE"
	CodeBrowserSkillNotFound            Code = "BROWSER_SKILL_NOT_FOUND"
	CodeBrowserSkillInvalid             Code = "BROWSER_SKILL_INVALID"
	CodeBrowserSkillAttestationRequired Code = "BROWSER_SKILL_ATTESTATION_REQUIRED"
	CodeBrowserSkillUnavailable         Code = "BROWSER_SKILL_UNAVAILABLE"
	CodeBrowserSkillRunFailed           Code = "BROWSER_SKILL_RUN_FAILED"
	CodeIdempotencyConflict             Code = "IDEMPOTENCY_CONFLICT"
	CodeIdempotencyInProgress           Code = "IDEMPOTENCY_IN_PROGRESS"
	CodeRunTerminal                     Code = "RUN_TERMINAL"
	CodeSourceDisabled                  Code = "SOURCE_DISABLED"
	CodeInUse                           Code = "IN_USE"
	CodeEmailTaken                      Code = "EMAIL_TAKEN"
	CodeLastOwner                       Code = "LAST_OWNER"
	CodeMethodNotAllowed                Code = "METHOD_NOT_ALLOWED"
	CodePayloadTooLarge                 Code = "PAYLOAD_TOO_LARGE"
	CodeUnsupportedMediaType            Code = "UNSUPPORTED_MEDIA_TYPE"
	CodeUnavailable                     Code = "UNAVAILABLE"
	CodeBadRequest                      Code = "BAD_REQUEST"
	CodeRequestTimeout                  Code = "REQUEST_TIMEOUT"
	CodeHeadersTooLarge                 Code = "HEADERS_TOO_LARGE"
	CodeHTTPVersionNotSupported         Code = "HTTP_VERSION_NOT_SUPPORTED"
	CodeInternal                        Code = "INTERNAL"
)

// Catalogue lists every code once.
var Catalogue = []Entry{
	{CodeUnauthorized, 401, "Unauthorized", "missing, revoked or unknown key, or a key presented with another tenant's id, or no session"},
	{CodeTenantRequired, 400, "Tenant required", "key call without X-Tenant-Id"},
	{CodeForbidden, 403, "Forbidden", "role too low for the route or approval"},
	{CodeValidation, 400, "Validation failed", "body or query failed schema validation"},
	{CodeNotFound, 404, "Not found", "unknown id in this tenant, or unknown route"},
	{CodeRateLimited, 429, "Rate limited", "token bucket empty"},
	{CodeInvalidSignature, 401, "Invalid signature", "hook HMAC does not match the raw body"},
	{CodeInvalidBody, 400, "Invalid body", "hook body is not JSON"},
	{CodeUnknownTool, 400, "Unknown tool", "per-turn tools contains an unknown token"},
	{CodeAgentNotPublished, 409, "Agent not published", "target agent has no published version"},
	{CodeWorkflowNotPublished, 409, "Workflow not published", "target workflow has no published version"},
	{CodeTriggerDisabled, 409, "Trigger disabled", "manual fire of a paused trigger"},
	{CodeSlugTaken, 409, "Slug taken", "slug already exists in the tenant"},
	{CodeInvalidURL, 422, "Invalid URL", "webhook URL rejected by the outbound guard"},
	{CodeAlreadyDecided, 409, "Already decided", "approval no longer pending or already decided by the caller"},
	{CodeInvalidArgs, 422, "Invalid arguments", "edited_args failed the tool's JSON Schema"},
	{CodeMCPUnreachable, 502, "Tool server unreachable", "could not connect to the MCP server or list its tools"},
	{CodeNameTaken, 409, "Name taken", "a live embed key with this name already exists for the agent"},
	{CodeEmbedKeyInvalid, 401, "Embed key invalid", "unknown publishable key"},
	{CodeEmbedKeyDisabled, 401, "Embed key disabled", "key paused or revoked"},
	{CodeEmbedOriginDenied, 403, "Origin denied", "Origin not on the allowlist"},
	{CodeEmbedOriginMismatch, 403, "Origin mismatch", "session token used from another origin than it was minted for"},
	{CodeEmbedUnauthorized, 401, "Embed session required", "missing, malformed or expired session token"},
	{CodeEmbedIdentityRequired, 401, "Identity required", "key has identity_required and the request carried no identity JWT"},
	{CodeEmbedIdentityInvalid, 401, "Identity invalid", "identity JWT rejected"},
	{CodeEmbedIdentityUnavailable, 401, "Identity unavailable", "identity JWT sent but the key has no identity secret"},
	{CodeEmbedRunInFlight, 409, "Run in flight", "message posted while the thread's previous run is queued or running"},
	{CodeEmbedThreadFull, 409, "Thread full", "thread holds 200 messages"},
	{CodeEmbedTooManyStreams, 429, "Too many streams", "visitor already holds 2 live streams for the key"},
	{CodeEmbedBundleUnavailable, 503, "Widget unavailable", "API running but the widget bundle was not built into the deployment"},
	{CodeBrowserSkillNotFound, 404, "Browser skill not found", "unknown skill in this tenant"},
	{CodeBrowserSkillInvalid, 400, "Browser skill invalid", "cross-field rule of definition or policy failed"},
	{CodeBrowserSkillAttestationRequired, 400, "Attestation required", "owner_attested was not true"},
	{CodeBrowserSkillUnavailable, 503, "Browser skills unavailable", "no browser sandbox configured"},
	{CodeBrowserSkillRunFailed, 502, "Browser skill run failed", "run did not land"},
	{CodeIdempotencyConflict, 409, "Idempotency conflict", "the same Idempotency-Key with another body"},
	{CodeIdempotencyInProgress, 409, "Idempotent request in progress", "the first request with this Idempotency-Key has not ended"},
	{CodeRunTerminal, 409, "Run has ended", "event for a run that has ended"},
	{CodeSourceDisabled, 409, "Source disabled", "sync of a disabled knowledge source"},
	{CodeInUse, 409, "In use", "other things still refer to it"},
	{CodeEmailTaken, 409, "E-mail taken", "another user of the tenant has this e-mail"},
	{CodeLastOwner, 409, "Last owner", "removing or demoting the last owner"},
	{CodeMethodNotAllowed, 405, "Method not allowed", "known route, other method"},
	{CodePayloadTooLarge, 413, "Payload too large", "a body over the limit"},
	{CodeUnsupportedMediaType, 415, "Unsupported media type", "a wrong content type"},
	{CodeUnavailable, 503, "Unavailable", "storage or queue not available"},
	{CodeBadRequest, 400, "Bad request", "malformed HTTP"},
	{CodeRequestTimeout, 408, "Request timeout", "the request did not arrive in time"},
	{CodeHeadersTooLarge, 431, "Request headers too large", "the request's head is over the limit"},
	{CodeHTTPVersionNotSupported, 505, "HTTP version not supported", "neither HTTP/1.0 nor HTTP/1.1"},
	{CodeInternal, 500, "Internal error", "a fault of the service; the log has the cause under the request id"},
}

var byCode = func() map[Code]Entry {
	m := make(map[Code]Entry, len(Catalogue))
	for _, e := range Catalogue {
		m[e.Code] = e
	}
	return m
}()
