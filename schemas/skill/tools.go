package skill

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/tool"
)

// Op is an operation of a skill, and the bare name of a generated tool.
type Op string

// Values of Op.
const (
	OpRun    Op = "run"
	OpDryRun Op = "dry_run"
)

// Ops lists every value.
var Ops = []Op{OpRun, OpDryRun}

// ToolName returns the qualified name of a generated tool: browser_skill:<slug>.<op>.
func ToolName(slug string, op Op) string {
	return string(tool.BrowserSkill) + ":" + slug + "." + string(op)
}

// Cite returns the mark by which a run's result is cited: browser_skill:<slug>#<run>.
func Cite(slug, run string) string { return string(tool.BrowserSkill) + ":" + slug + "#" + run }

// Offers reports whether agents may get the operation under this policy: under dry_run_only there
// is no run, whatever is granted.
func (p *Policy) Offers(op Op) bool { return op == OpDryRun || p.Approval != DryRunOnly }

// Tools returns the generated tools of a skill.
func Tools(of id.SkillID, slug, description string, d *Definition, p *Policy) []tool.Spec {
	var out []tool.Spec
	for _, op := range Ops {
		if !p.Offers(op) {
			continue
		}
		s := tool.Spec{Source: tool.BrowserSkill, Owner: slug, Skill: &of, Name: string(op), Description: description}
		if op == OpRun {
			s.Schema = ToolSchema(d, ForRun)
			s.ReadOnly = d.CommitStepID == ""
			s.Idempotent = true // the same values reach the same run, which is never driven twice
		} else {
			s.Schema = ToolSchema(d, ForDryRun)
			s.ReadOnly, s.Idempotent = true, true // it submits nothing
		}
		out = append(out, s)
	}
	return out
}

// Terms returns the terms of the approval that the policy forces. Other policies and rules only
// tighten them (tool.Stricter).
func (p *Policy) Terms(slug string) tool.Terms {
	return tool.Terms{
		Risk: p.RiskLevel, Required: p.RequiredApprovals, Role: p.ApproverRole, SLAMinutes: p.SLAMinutes,
		OnTimeout: agent.TimeoutReject, Policy: tool.PolicyRef{Name: ToolName(slug, OpRun), Kind: tool.KindSkill},
	}
}

// ToolSchema returns the JSON Schema of a call's arguments: one property for each bound parameter,
// and the reason of a run. Whatever Bind accepts, its Values.JSON fits it.
func ToolSchema(d *Definition, form Form) json.RawMessage {
	type m = map[string]any
	properties, required := m{}, []string{}
	for _, p := range d.Bound() {
		properties[p.Name] = p.schema()
		if p.Required {
			required = append(required, p.Name)
		}
	}
	if form != ForDryRun {
		properties["reason"] = m{"type": "string", "minLength": 1, "maxLength": maxReason, "description": "Why this is done, for the person who approves it."}
	}
	if form == ForRun {
		required = append(required, "reason")
	}
	return marshal(m{"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

func (p *Param) schema() map[string]any {
	s := map[string]any{"type": "string"}
	if p.Label != "" {
		s["description"] = p.Label
	}
	switch p.Type {
	case Number, Integer, Boolean:
		s["type"] = string(p.Type)
	case Enum:
		s["enum"] = slices.Clone(p.Enum)
	case Date:
		s["format"] = "date"
	default:
		s["maxLength"] = MaxValue
		if p.MaxLength > 0 {
			s["maxLength"] = p.MaxLength
		}
	}
	if p.Min != nil {
		s["minimum"] = *p.Min
	}
	if p.Max != nil {
		s["maximum"] = *p.Max
	}
	if p.Pattern != "" {
		s["pattern"] = p.Pattern
	}
	if p.Example != nil {
		s["examples"] = []any{string(*p.Example)}
		if _, exact, rule := p.coerce(jsontext.Must(string(*p.Example))); rule == "" {
			s["examples"] = []any{exact}
		}
	}
	return s
}

func marshal(v any) json.RawMessage {
	doc, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of texts and finite numbers
	}
	return doc
}

// Key returns the idempotency key of a run: derived from the tenant, the agent run, the tool and
// the values. The reason is no part of it. Values that are equal after cleaning and coercion have
// one key.
func Key(tenant id.TenantID, run id.RunID, slug string, op Op, v Values) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte("browser skill run 1"), tenant.UUID[:], run.UUID[:], []byte(ToolName(slug, op)), v.JSON()} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
