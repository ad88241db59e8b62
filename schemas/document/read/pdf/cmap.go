package pdf

import "sort"

// parseCmap reads what a map of codes says: bfchar, bfrange and codespacerange.
func (d *Doc) parseCmap(data []byte) *cmap {
	m := &cmap{single: map[int]string{}}
	l := &lexer{b: data, whole: true}
	var stack []object
	for {
		o, err := l.next(0)
		if err != nil {
			break
		}
		d.step(1)
		k, is := o.(keyword)
		if !is {
			if stack = append(stack, o); len(stack) > 1000 {
				stack = append(stack[:0], stack[500:]...)
			}
			continue
		}
		switch k {
		case "endcodespacerange":
			for i := 0; i+1 < len(stack) && len(m.spaces) < 100; i += 2 {
				low, n, ok := codeOf(stack[i])
				high, _, ok2 := codeOf(stack[i+1])
				if ok && ok2 && n >= 1 && n <= 4 {
					m.spaces = append(m.spaces, codespace{low, high, n})
				}
			}
		case "endbfchar":
			for i := 0; i+1 < len(stack) && len(m.single) < mostCodes; i += 2 {
				if code, _, ok := codeOf(stack[i]); ok {
					m.single[code] = textOf(stack[i+1])
				}
			}
		case "endbfrange":
			for i := 0; i+2 < len(stack) && len(m.ranges)+len(m.single) < mostCodes; i += 3 {
				low, _, ok := codeOf(stack[i])
				high, _, ok2 := codeOf(stack[i+1])
				if !ok || !ok2 || high < low || high-low > 1<<16 {
					continue
				}
				if list, is := stack[i+2].(array); is {
					for j, o := range list {
						if low+j <= high && len(m.single) < mostCodes {
							m.single[low+j] = textOf(o)
						}
					}
					continue
				}
				m.ranges = append(m.ranges, codeRange{low, high, textOf(stack[i+2])})
			}
		}
		stack = stack[:0]
	}
	sort.SliceStable(m.ranges, func(i, j int) bool { return m.ranges[i].low < m.ranges[j].low })
	return m
}

func codeOf(o object) (code, n int, ok bool) {
	s, is := o.(string)
	if !is || len(s) == 0 || len(s) > 4 {
		return 0, 0, false
	}
	for i := range len(s) {
		code = code<<8 | int(s[i])
	}
	return code, len(s), true
}

// textOf reads UTF-16, or the name of a glyph.
func textOf(o object) string {
	switch o := o.(type) {
	case string:
		if len(o) == 1 {
			return string(rune(o[0]))
		}
		if len(o) > 200 {
			o = o[:200]
		}
		return utf16String(o, false)
	case name:
		return glyphText(string(o))
	}
	return ""
}
