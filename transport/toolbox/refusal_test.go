package toolbox

import (
	"encoding/json"
	"strings"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
	"agentsvc/transport/mcp"
)

// A refusal names the kind of its caller.
func TestARefusalNamesItsCaller(t *testing.T) {
	t.Parallel()
	w := id.WorkflowID{UUID: id.NewAnywhere()}
	for want, caller := range map[string]tool.Caller{"agent": {}, "workflow": {Workflow: &w}} {
		p := plan(t.Context(), caller, &view{}, nil, 0, &model.Call{Name: "shop.buy", Args: json.RawMessage("{}")})
		if p.Refused == nil || p.Refused.Content != `{"error":"TOOL_NOT_GRANTED","message":"The tool \"shop.buy\" is not granted to this `+want+`. Nothing was run."}` {
			t.Errorf("%s: %+v", want, p.Refused)
		}
	}
}

// An answer that nests too deep for the documents around it is shown as a text.
func TestADeepAnswerIsShownAsText(t *testing.T) {
	t.Parallel()
	for depth, first := range map[int]byte{500: '[', 501: '"', 9_999: '"'} {
		content := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		o := outcome(mcp.Answer{Content: content})
		if o.Content != content || o.Shown[0] != first || !json.Valid(o.Shown) {
			t.Errorf("%d levels: shown as %.20s", depth, o.Shown)
		}
	}
}
