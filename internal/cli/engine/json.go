package engine

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/tailscale/hujson"
)

// memberIndex is -1 if the object has no such member. Of two, programs take
// one or the other: that is an error.
func memberIndex(config []byte, o *hujson.Object, name string) (int, error) {
	found := -1
	for i, m := range o.Members {
		if text(m.Name) != name {
			continue
		}
		if found >= 0 {
			return -1, atOffset(config, m.Name.StartOffset, "%q is there twice", name)
		}
		found = i
	}
	return found, nil
}

// childObject is nil if the object has no such member.
func childObject(config []byte, o *hujson.Object, name string) (*hujson.Object, error) {
	i, err := memberIndex(config, o, name)
	if err != nil || i < 0 {
		return nil, err
	}
	child, ok := o.Members[i].Value.Value.(*hujson.Object)
	if !ok {
		return nil, atOffset(config, o.Members[i].Name.StartOffset, "%q is not an object", name)
	}
	return child, nil
}

// text is the value of a string, and the source text of any other value.
func text(v hujson.Value) string {
	literal, ok := v.Value.(hujson.Literal)
	if !ok {
		return v.String()
	}
	if literal.Kind() != '"' {
		return string(literal)
	}
	return literal.String()
}

// appendMember writes a member as its neighbours are written: on a line of its
// own if they are. An object without members lies at indentation outer, and
// gets its first unit further in.
func appendMember(o *hujson.Object, name string, value any, outer, unit string) error {
	before, afterColon := hujson.Extra("\n"+outer+unit), hujson.Extra(" ")
	if n := len(o.Members); n > 0 {
		before, afterColon = o.Members[n-1].Name.BeforeExtra, o.Members[n-1].Value.BeforeExtra
	} else {
		o.AfterExtra = hujson.Extra("\n" + outer)
	}
	newline := bytes.LastIndexByte(before, '\n')
	var data []byte
	var err error
	if newline >= 0 {
		data, err = marshal(value, string(before[newline+1:]), unit)
	} else {
		data, err = marshal(value, "", "")
	}
	if err != nil {
		return err
	}
	if bytes.Contains(before, []byte("\r\n")) {
		data = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
	}
	parsed, err := hujson.Parse(data)
	if err != nil {
		return err
	}
	parsed.BeforeExtra = bytes.Clone(afterColon)
	o.Members = append(o.Members, hujson.ObjectMember{
		Name:  hujson.Value{BeforeExtra: bytes.Clone(before), Value: hujson.String(name)},
		Value: parsed,
	})
	return nil
}

// removeMember leaves the rest as it was before the member was appended.
func removeMember(o *hujson.Object, i int) {
	if i == 0 && len(o.Members) > 1 {
		o.Members[1].Name.BeforeExtra = o.Members[0].Name.BeforeExtra
	}
	o.Members = append(o.Members[:i], o.Members[i+1:]...)
	if n := len(o.Members); n == 0 {
		o.AfterExtra = nil
	} else if i == n {
		o.Members[n-1].Value.AfterExtra = nil // or a comma would follow it
	}
}

// indentation is how much further in the members of the top are than its
// braces; four spaces if nothing tells.
func indentation(top *hujson.Object) string {
	if len(top.Members) == 0 {
		return "    "
	}
	before := string(top.Members[0].Name.BeforeExtra)
	i := strings.LastIndexByte(before, '\n')
	if i < 0 {
		return "    "
	}
	return before[i+1:]
}

// marshal writes paths as they are: no <, > or & is escaped.
func marshal(value any, prefix, indent string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(prefix, indent)
	err := enc.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
