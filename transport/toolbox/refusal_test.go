package toolbox

import (
	"encoding/json"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
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
