package skill

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentsvc/schemas/check/checktest"
)

// What one request may cost at the worst. Not parallel: the memory is that of the process.
func TestASkillTakesLittle(t *testing.T) {
	fill := func(prefix, unit, suffix string) string {
		return prefix + strings.TrimSuffix(strings.Repeat(unit, (MaxBytes-len(prefix)-len(suffix))/len(unit)), ",") + suffix
	}
	var unknown, secrets strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&unknown, `"f%d":1,`, i)
		fmt.Fprintf(&secrets, `"f%d":"",`, i)
	}
	patterns := list(20, `{"name": "p%d", "type": "string", "pattern": "([a-z]{1,40}){1,20}x%d"}`)
	for name, in := range map[string]Input{
		"many steps":          {Definition: json.RawMessage(fill(`{"steps": [`, `{},`, `]}`))},
		"many empty lists":    {Definition: json.RawMessage(fill(`{"steps": [`, `[],`, `]}`))},
		"many unknown fields": {Definition: json.RawMessage(`{` + unknown.String() + `"steps": []}`)},
		"a long text":         {Definition: json.RawMessage(fill(`{"start_url": "`, `\u00fc`, `"}`))},
		"a deep value":        {Definition: json.RawMessage(strings.Repeat("[", 250_000) + strings.Repeat("]", 250_000))},
		"many values":         {Definition: json.RawMessage(fill(`{"params": [{"enum": [`, `"a",`, `]}]}`))},
		"patterns":            {Definition: change(t, full, at{"params", patterns})},
		"many secrets":        {Definition: json.RawMessage(full), Auth: json.RawMessage(`{"mode": "credentials", "secrets": {` + secrets.String() + `"z": ""}}`)},
		"a full policy":       {Definition: json.RawMessage(full), Policy: json.RawMessage(`{` + unknown.String() + `"x": 1}`)},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if n := checktest.Grows(func() { _, err = Parse(in) }); n > checktest.Most {
				t.Errorf("%d MB", n>>20)
			}
			if err == nil || len(err.Error()) > 64<<10 {
				t.Errorf("%.200v", err)
			}
		})
	}
}

// Long values against the largest patterns that a skill may have, and arguments as large as a call
// may send.
func TestACallTakesLittle(t *testing.T) {
	s, err := Parse(input(t, with(read,
		at{"definition.params", list(3, `{"name": "p%d", "type": "string", "pattern": "(a?){120}(a|b)*x%d$"}`)},
		at{"definition.steps", list(3, `{"id": "s%d", "kind": "type", "target": {"selector": "a"}, "param": "p%d"}`)},
		at{"policy", `{"approval": "none_for_idempotent_reads", "risk_level": "low"}`})...))
	if err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("a", MaxValue)
	for name, args := range map[string]string{
		"long values":  fmt.Sprintf(`{"p0": %q, "p1": %q, "p2": %q}`, value, value, value),
		"many names":   `{` + strings.TrimSuffix(strings.Repeat(`"x":1,`, 170_000), ",") + `}`,
		"a long value": `{"p0": "` + strings.Repeat(`\u202e`, 170_000) + `"}`,
		"deep":         `{"p0": ` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			n := checktest.Grows(func() {
				_, faults, err := s.Definition.Bind(t.Context(), ForDryRun, json.RawMessage(args))
				if err != nil || len(faults) == 0 || len(faults) > maxFaults {
					t.Errorf("%d faults, %v", len(faults), err)
				}
			})
			if n > checktest.Most {
				t.Errorf("%d MB", n>>20)
			}
		})
	}
}
