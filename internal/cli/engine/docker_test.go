package engine

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const dockerFresh = `{
    "runtimes": {
        "sandbox": {
            "path": "/usr/local/bin/sandbox-runtime"
        }
    }
}
`

var dockerFreshDefault = dockerFresh[:len(dockerFresh)-3] + ",\n    \"default-runtime\": \"sandbox\"\n}\n"

func TestDockerAdd(t *testing.T) {
	checkAdd(t, Docker{}, sandbox, []edit{
		{name: "no file", after: dockerFresh},
		{name: "blank", before: " \n\n", after: dockerFresh},
		{name: "empty object", before: "{}", after: dockerFresh[:len(dockerFresh)-1]},
		{name: "empty object on lines", before: "{\n}\n", after: dockerFresh},
		{
			name:   "order and indentation stay",
			before: "{\n  \"storage-driver\": \"overlay2\",\n  \"debug\":true\n}\n",
			after: "{\n  \"storage-driver\": \"overlay2\",\n  \"debug\":true,\n  \"runtimes\":{\n    \"sandbox\": {\n" +
				"      \"path\": \"/usr/local/bin/sandbox-runtime\"\n    }\n  }\n}\n",
		},
		{
			name:   "tabs, and no line end",
			before: "{\n\t\"debug\": true\n}",
			after:  "{\n\t\"debug\": true,\n\t\"runtimes\": {\n\t\t\"sandbox\": {\n\t\t\t\"path\": \"/usr/local/bin/sandbox-runtime\"\n\t\t}\n\t}\n}",
		},
		{
			name:   "Windows lines",
			before: "{\r\n  \"debug\": true\r\n}\r\n",
			after: "{\r\n  \"debug\": true,\r\n  \"runtimes\": {\r\n    \"sandbox\": {\r\n" +
				"      \"path\": \"/usr/local/bin/sandbox-runtime\"\r\n    }\r\n  }\r\n}\r\n",
		},
		{
			name:   "one line",
			before: `{"a":1,"b":[ 2]}`,
			after:  `{"a":1,"b":[ 2],"runtimes":{"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}}}`,
		},
		{
			name:   "one line with spaces",
			before: `{ "a": 1, "b": 2 }`,
			after:  `{ "a": 1, "b": 2, "runtimes": {"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}} }`,
		},
		{
			name: "beside another runtime",
			before: `{
  "runtimes": {
    "kata": {"path": "/usr/bin/kata-runtime", "runtimeArgs": ["--x"]}
  },
  "debug": true
}
`,
			after: `{
  "runtimes": {
    "kata": {"path": "/usr/bin/kata-runtime", "runtimeArgs": ["--x"]},
    "sandbox": {
      "path": "/usr/local/bin/sandbox-runtime"
    }
  },
  "debug": true
}
`,
		},
		{
			name:   "runtimes without any",
			before: "{\n  \"runtimes\": {},\n  \"debug\": true\n}\n",
			after: "{\n  \"runtimes\": {\n    \"sandbox\": {\n      \"path\": \"/usr/local/bin/sandbox-runtime\"\n    }\n  },\n" +
				"  \"debug\": true\n}\n",
		},
		{name: "there already", before: dockerFresh, after: dockerFresh},
		{
			name:   "there already, with arguments of the user's",
			before: `{"runtimes":{"sandbox":{"runtimeArgs":["--debug"],"path":"/usr/local/bin/sandbox-runtime"}}}`,
			after:  `{"runtimes":{"sandbox":{"runtimeArgs":["--debug"],"path":"/usr/local/bin/sandbox-runtime"}}}`,
		},
		{
			name:   "ours, elsewhere before",
			before: `{"runtimes": {"sandbox": {"path": "/opt/old/sandbox-runtime"}}}`,
			after:  `{"runtimes": {"sandbox": {"path": "/usr/local/bin/sandbox-runtime"}}}`,
		},
		{name: "ours, elsewhere, with arguments", before: `{"runtimes":{"sandbox":{"path":"/old/sandbox-runtime","runtimeArgs":[]}}}`, line: 1, words: "--name"},
		{name: "somebody else's", before: "{\n\"runtimes\": {\n\"sandbox\": {\"path\": \"/usr/bin/runsc\"}}}", line: 3, words: `as /usr/bin/runsc: choose another name with --name`},
		{name: "a shim", before: `{"runtimes": {"sandbox": {"runtimeType": "io.containerd.x.v1"}}}`, line: 1, words: "choose another name"},
		{name: "broken", before: "{\n  \"a\": 1,\n  \"b\" 2\n}", line: 3, words: "not JSON"},
		{name: "cut off", before: "{\n  \"a\": {\n", line: 2, words: "not JSON"},
		{name: "two values", before: "{}\n{}", line: 2, words: "not JSON"},
		{name: "comments, which dockerd does not take", before: "{\n  // debug\n  \"a\": 1}", line: 2, words: "not JSON"},
		{name: "comma at the end", before: "{\"a\": 1,\n}", line: 2, words: "not JSON"},
		{name: "a list", before: "[]", line: 1, words: "not a JSON object"},
		{name: "null", before: "null", line: 1, words: "not a JSON object"},
		{name: "runtimes is a list", before: "{\n\"runtimes\": []}", line: 2, words: `"runtimes" is not an object`},
		{name: "runtimes twice", before: "{\"runtimes\": {},\n\"runtimes\": {}}", line: 2, words: "twice"},
		{name: "our name twice", before: "{\"runtimes\": {\"sandbox\": {},\n\"sandbox\": {}}}", line: 2, words: "twice"},
		{name: "our entry is a text", before: "{\"runtimes\": {\"sandbox\": \"x\"}}", line: 1, words: "not an object"},
	})
}

func TestDockerAddAsDefault(t *testing.T) {
	r := sandbox
	r.Default = true
	checkAdd(t, Docker{}, r, []edit{
		{name: "no file", after: dockerFreshDefault},
		{name: "there already", before: dockerFresh, after: dockerFreshDefault},
		{name: "another default", before: "{\n\"default-runtime\": \"kata\"}", line: 2, words: `default-runtime is "kata" already`},
		{
			name:   "dockerd's own default, as Remove writes it",
			before: `{"default-runtime":"runc","runtimes":{"kata":{"path":"/k"}}}`,
			after:  `{"default-runtime":"sandbox","runtimes":{"kata":{"path":"/k"},"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}}}`,
		},
	})
}

func TestDockerRemove(t *testing.T) {
	checkRemove(t, Docker{}, sandbox, []edit{
		{name: "no file"},
		{name: "blank", before: "\n", after: "\n"},
		{name: "a file that register made", before: dockerFresh},
		{name: "a file that register made, as default", before: dockerFreshDefault},
		{name: "a file that register made for an older path", before: strings.Replace(dockerFresh, "/usr/local/bin", "/old", 1)},
		{name: "an empty object that somebody else made", before: dockerFresh[:len(dockerFresh)-1], after: "{}"},
		{name: "not there", before: `{ "debug": true}`, after: `{ "debug": true}`},
		{name: "no such runtime", before: `{"runtimes" : {"kata": {"path": "/k"}}}`, after: `{"runtimes" : {"kata": {"path": "/k"}}}`},
		{
			name:   "the first of two",
			before: "{\n  \"runtimes\": {\n    \"sandbox\": {\"path\": \"/usr/local/bin/sandbox-runtime\"},\n    \"kata\": {\"path\": \"/k\"}\n  }\n}",
			after:  "{\n  \"runtimes\": {\n    \"kata\": {\"path\": \"/k\"}\n  }\n}",
		},
		{
			name:   "the first of two in a line",
			before: `{"runtimes": {"sandbox": {"path": "/x/sandbox-runtime"}, "kata": {"path": "/k"}}}`,
			after:  `{"runtimes": {"kata": {"path": "/k"}}}`,
		},
		{
			name:   "the last of two, before a comma with space",
			before: `{"runtimes": {"kata": {"path": "/k"} , "sandbox": {"path": "/x/sandbox-runtime"} } }`,
			after:  `{"runtimes": {"kata": {"path": "/k"} } }`,
		},
		{
			name:   "the default as well, or dockerd would not start",
			before: `{"debug":true,"default-runtime":"sandbox","runtimes":{"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}}}`,
			after:  `{"debug":true}`,
		},
		{
			name:   "the default beside another runtime, or a reload would crash dockerd 20.10",
			before: `{"default-runtime":"sandbox","runtimes":{"kata":{"path":"/k"},"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}}}`,
			after:  `{"default-runtime":"runc","runtimes":{"kata":{"path":"/k"}}}`,
		},
		{
			name:   "not another default",
			before: `{"default-runtime":"runc","runtimes":{"sandbox":{"path":"/usr/local/bin/sandbox-runtime"}}}`,
			after:  `{"default-runtime":"runc"}`,
		},
		{name: "somebody else's", before: "{\"runtimes\": {\n\"sandbox\": {\"path\": \"/usr/bin/runsc\"}}}", line: 2, words: "by hand"},
		{name: "with arguments", before: `{"runtimes":{"sandbox":{"path":"/x/sandbox-runtime","runtimeArgs":[]}}}`, line: 1, words: "by hand"},
		{name: "broken", before: "{\n\n", line: 2, words: "not JSON"},
	})
}

// dockerConfigs are as people write them, and seeds of the fuzzer.
var dockerConfigs = []string{
	"", "\n", "{}", "{ }\n", "{\n}", `{"debug":true}`, "{\n    \"debug\" : true ,\n  \"x\": [1,\n 2]\n}\n\n",
	"{\n\t\"log-driver\": \"local\",\n\t\"log-opts\": {\"max-size\": \"10m\"}\n}\n",
	`{"runtimes":{"kata":{"path":"/k"}}}`,
	"{\n  \"runtimes\": {\n    \"nvidia\": {\n      \"args\": [],\n      \"path\": \"nvidia-container-runtime\"\n    }\n  },\n  \"a\": 1e400\n}",
	"{\"\\u0072untimes\": {\"k\" :{ }\r\n}\r\n ,\"é\\n\": null }",
}

func FuzzDockerKeepsTheRest(f *testing.F) {
	for _, c := range dockerConfigs {
		f.Add([]byte(c), false)
		f.Add([]byte(c), true)
	}
	f.Fuzz(func(t *testing.T, config []byte, byDefault bool) {
		r := sandbox
		r.Default = byDefault
		if _, err := (Docker{}).Add(config, r); err != nil {
			return // refused; nothing is written
		}
		with, without := addAndRemove(t, Docker{}, config, r)
		before, now, after := decode(t, config), decode(t, with), decode(t, without)
		entry, _ := now["runtimes"].(map[string]any)["sandbox"].(map[string]any)
		if entry["path"] != sandbox.Path {
			t.Fatalf("not there: %s", with)
		}
		// What was ours from the start goes as well, and so does an empty "runtimes".
		strip(before)
		_, ownBefore := before["default-runtime"]
		_, ownAfter := after["default-runtime"]
		if byDefault && (before["default-runtime"] == dockerOwn || after["default-runtime"] == dockerOwn) {
			delete(before, "default-runtime") // dockerd's own is as none
			delete(after, "default-runtime")
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%q became %q", config, without)
		}
		if len(before) == len(decode(t, config)) && len(before) > 0 && ownBefore == ownAfter && string(config) != string(without) {
			t.Fatalf("bytes: %q became %q", config, without)
		}
	})
}

func strip(tree map[string]any) {
	if runtimes, ok := tree["runtimes"].(map[string]any); ok {
		if _, had := runtimes["sandbox"]; had && tree["default-runtime"] == "sandbox" {
			delete(tree, "default-runtime")
		}
		delete(runtimes, "sandbox")
		if len(runtimes) == 0 {
			delete(tree, "runtimes")
		}
	}
	if tree["default-runtime"] == "sandbox" {
		delete(tree, "default-runtime")
	}
}

func decode(t *testing.T, config []byte) map[string]any {
	t.Helper()
	tree := map[string]any{}
	if len(config) == 0 || json.Valid(config) {
		var loose map[string]json.RawMessage // numbers as they are written
		if len(config) > 0 {
			if err := json.Unmarshal(config, &loose); err != nil {
				t.Fatal(err)
			}
		}
		for k, v := range loose {
			var value any
			if json.Unmarshal(v, &value) != nil {
				value = string(v)
			}
			tree[k] = value
		}
	}
	return tree
}
