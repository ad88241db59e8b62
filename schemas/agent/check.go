package agent

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"agentsvc/schemas/check"
	"agentsvc/schemas/id"
)

// Limits that the specification leaves open.
const (
	// MaxBytes is the maximum size of a manifest.
	MaxBytes = 512 << 10

	maxInstructions = 64_000 // open-parts.md, Manifest
	maxEntries      = 100    // of every list
	maxPattern      = 200    // of a tool pattern
	maxRegex        = 1_000
)

var (
	slug     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	skillOps = []string{"run", "dry_run"}
	// Sources that a rule may name (service.md, Approval policy).
	sources = []string{"mcp", "builtin", "a2a", "connector"}
	risks   = []string{"low", "medium", "high", "critical"}
	roles   = []string{"owner", "admin", "manager", "member"}
)

// ValidSlug reports whether s is a slug (open-parts.md, Questions settled).
func ValidSlug(s string) bool { return slug.MatchString(s) }

// ValidPattern reports whether s is a tool pattern: a name, or `*` at the end, alone or after
// `.` or `:` (open-parts.md, Tools).
func ValidPattern(s string) bool {
	if s == "" || len(s) > maxPattern {
		return false
	}
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return false
		}
	}
	star := strings.IndexByte(s, '*')
	if star < 0 {
		return true
	}
	return star == len(s)-1 && (star == 0 || s[star-1] == '.' || s[star-1] == ':')
}

// validate returns everything that is wrong with a manifest. With nulls, null counts as absent.
func validate(ctx context.Context, at string, doc json.RawMessage, nulls bool) error {
	c := &complaints{nulls: nulls}
	if len(doc) > MaxBytes {
		c.say(at, "must have at most %d bytes", MaxBytes)
		return c.problem()
	}
	v, err := read(doc)
	if err != nil {
		c.say(at, "%s", err)
		return c.problem()
	}
	if v == nil {
		c.say(at, "required")
		return c.problem()
	}
	m, ok := c.object(at, v, "model", "instructions", "tools", "knowledge_bases", "hitl", "output_schema", "guardrails", "limits", "memory", "handoffs")
	if !ok {
		return c.problem()
	}
	c.needs(at, m, "model")
	c.model(at+".model", m.values["model"])
	c.text(at+".instructions", m.values["instructions"], 0, maxInstructions)
	c.tools(at+".tools", m.values["tools"])
	c.knowledge(at+".knowledge_bases", m.values["knowledge_bases"])
	if h, ok := c.object(at+".hitl", m.values["hitl"], "rules"); ok {
		for i, r := range c.list(at+".hitl.rules", h.values["rules"], maxEntries) {
			c.rule(item(at+".hitl.rules", i), r)
		}
	}
	c.outputSchema(ctx, at+".output_schema", m.values["output_schema"], doc)
	if err := ctx.Err(); err != nil {
		return err
	}
	if g, ok := c.object(at+".guardrails", m.values["guardrails"], "output"); ok {
		for i, v := range c.list(at+".guardrails.output", g.values["output"], maxEntries) {
			c.guardrail(item(at+".guardrails.output", i), v)
		}
	}
	if l, ok := c.object(at+".limits", m.values["limits"], "max_steps", "max_seconds", "max_tokens", "max_cost_usd"); ok {
		c.integer(at+".limits.max_steps", l.values["max_steps"], 1, 10_000)
		c.integer(at+".limits.max_seconds", l.values["max_seconds"], 1, 7*24*3600)
		c.integer(at+".limits.max_tokens", l.values["max_tokens"], 1, 1e12)
		c.number(at+".limits.max_cost_usd", l.values["max_cost_usd"], 0, 1e6, true)
	}
	if o, ok := c.object(at+".memory", m.values["memory"], "max_messages"); ok {
		c.integer(at+".memory.max_messages", o.values["max_messages"], 1, 1_000)
	}
	for i, v := range c.list(at+".handoffs", m.values["handoffs"], maxEntries) {
		c.slug(item(at+".handoffs", i), v)
	}
	return c.problem()
}

func (c *complaints) model(at string, v any) {
	o, ok := c.object(at, v, "provider", "name", "temperature", "max_output_tokens", "thinking")
	if !ok {
		return
	}
	c.needs(at, o, "provider", "name")
	if o.values["provider"] != nil {
		c.slug(at+".provider", o.values["provider"])
	}
	c.text(at+".name", o.values["name"], 1, 200)
	c.number(at+".temperature", o.values["temperature"], 0, 2, false)
	c.integer(at+".max_output_tokens", o.values["max_output_tokens"], 1, 10_000_000)
	if t, ok := c.object(at+".thinking", o.values["thinking"], "budget_tokens"); ok {
		c.needs(at+".thinking", t, "budget_tokens")
		c.integer(at+".thinking.budget_tokens", t.values["budget_tokens"], 1, 10_000_000)
	}
}

func (c *complaints) tools(at string, v any) {
	o, ok := c.object(at, v, "builtin", "mcp", "browser_skills")
	if !ok {
		return
	}
	for i, v := range c.list(at+".builtin", o.values["builtin"], maxEntries) {
		if _, ok := c.oneOf(item(at+".builtin", i), v, Builtins...); !ok && v == nil {
			c.say(item(at+".builtin", i), "must be one of %s", strings.Join(Builtins, ", "))
		}
	}
	for i, v := range c.list(at+".mcp", o.values["mcp"], maxEntries) {
		at := item(at+".mcp", i)
		m, ok := c.entry(at, v, "server", "allow")
		if !ok {
			continue
		}
		c.slug(at+".server", m.values["server"])
		for i, v := range c.list(at+".allow", m.values["allow"], maxEntries) {
			c.pattern(item(at+".allow", i), v)
		}
	}
	for i, v := range c.list(at+".browser_skills", o.values["browser_skills"], maxEntries) {
		at := item(at+".browser_skills", i)
		m, ok := c.entry(at, v, "skill", "allow")
		if !ok {
			continue
		}
		c.slug(at+".skill", m.values["skill"])
		for i, v := range c.list(at+".allow", m.values["allow"], len(skillOps)) {
			if s, isText := v.(string); !isText || !slices.Contains(skillOps, s) {
				c.say(item(at+".allow", i), "must be one of %s", strings.Join(skillOps, ", "))
			}
		}
	}
}

// entry reads an object in a list, where null does not count as absent.
func (c *complaints) entry(at string, v any, known ...string) (object, bool) {
	if v == nil {
		c.say(at, "must be an object")
		return object{}, false
	}
	return c.object(at, v, known...)
}

func (c *complaints) slug(at string, v any) {
	if v == nil {
		c.say(at, "required")
	} else if s, ok := v.(string); !ok || !ValidSlug(s) {
		c.say(at, "must be a slug: a lower-case letter or digit, then up to 62 of a-z, 0-9 and -")
	}
}

func (c *complaints) pattern(at string, v any) {
	if v == nil {
		c.say(at, "required")
	} else if s, ok := v.(string); !ok || !ValidPattern(s) {
		c.say(at, "must be a tool pattern: a name, or one * at the end, alone or after . or :")
	}
}

func (c *complaints) knowledge(at string, v any) {
	for i, v := range c.list(at, v, maxEntries) {
		s, ok := v.(string)
		if _, err := id.Parse(s); !ok || err != nil {
			c.say(item(at, i), "must be the id of a knowledge base")
		}
	}
}

func (c *complaints) rule(at string, v any) {
	o, ok := c.entry(at, v, "tool", "source", "risk", "required_approvals", "approver_role", "sla_minutes", "escalate_to_role", "on_timeout")
	if !ok {
		return
	}
	c.pattern(at+".tool", o.values["tool"])
	c.oneOf(at+".source", o.values["source"], sources...)
	c.oneOf(at+".risk", o.values["risk"], risks...)
	c.integer(at+".required_approvals", o.values["required_approvals"], 1, 5)
	c.oneOf(at+".approver_role", o.values["approver_role"], roles...)
	c.number(at+".sla_minutes", o.values["sla_minutes"], 0, 525_600, true)
	c.oneOf(at+".escalate_to_role", o.values["escalate_to_role"], roles...)
	c.oneOf(at+".on_timeout", o.values["on_timeout"], TimeoutReject, TimeoutCancelRun)
}

func (c *complaints) guardrail(at string, v any) {
	o, ok := c.entry(at, v, "kind", "pattern", "value", "action")
	if !ok {
		return
	}
	c.needs(at, o, "kind", "action")
	c.oneOf(at+".action", o.values["action"], GuardBlock, GuardRedact)
	kind, ok := c.oneOf(at+".kind", o.values["kind"], GuardRegex, GuardMaxChars)
	if !ok {
		return
	}
	needed, foreign := "pattern", "value"
	if kind == GuardMaxChars {
		needed, foreign = foreign, needed
	}
	c.needs(at, o, needed)
	if o.values[foreign] != nil {
		c.say(at+"."+foreign, "does not belong to %s", kind)
	}
	if kind == GuardMaxChars {
		c.integer(at+".value", o.values["value"], 1, 1_000_000)
		return
	}
	if s, ok := c.text(at+".pattern", o.values["pattern"], 1, maxRegex); ok {
		if c.patterns.Over() {
			return // already reported for the first pattern over the bound
		}
		switch _, err := c.patterns.Compile(s); {
		case errors.Is(err, check.ErrPattern):
			c.say(at+".pattern", "%s", err)
		case err != nil:
			c.say(at+".pattern", "must be a regular expression (RE2): %s", clip(err.Error()))
		}
	}
}

func (c *complaints) outputSchema(ctx context.Context, at string, v any, doc json.RawMessage) {
	if v == nil {
		return
	}
	if _, ok := c.object(at, v); !ok {
		return
	}
	var raw struct {
		Schema json.RawMessage `json:"output_schema"`
	}
	if err := json.Unmarshal(doc, &raw); err != nil {
		c.say(at, "is not JSON")
		return
	}
	_, err := check.Compile(ctx, raw.Schema, check.Options{Dynamic: true, Patterns: &c.patterns})
	var r *check.Refusal
	switch {
	case !errors.As(err, &r):
	case errors.Is(err, check.ErrLong):
		c.say(at, "must have at most %d bytes", check.MaxBytes)
	case errors.Is(err, check.ErrInvalid):
		c.say(at, "must be a JSON Schema: %s", schemaReason(r))
	default:
		c.say(at+r.Path(), "cannot be used as a schema: %s", r)
	}
}

// schemaReason returns the compiler's error on one line, without the internal address of the
// schema.
func schemaReason(r *check.Refusal) string {
	s := r.Error()
	if r.Detail != nil {
		s = r.Detail.Error()
	}
	s = strings.Join(strings.Fields(check.WithoutAddress(s)), " ")
	if r := []rune(s); len(r) > 300 {
		s = string(r[:300]) + "…"
	}
	return s
}
