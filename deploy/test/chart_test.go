package deploy

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const chartDir = repository + "/deploy/chart/countd"

// closed has the chart's values for a cluster that needs TLS, tokens and gossip keys.
const closed = `
tls: {secret: web-cert}
clusterTLS: {secret: node-cert}
gossip: {secret: gossip}
auth: {rootTokenSecret: root-token}
`

// everything gives every value of values.yaml a different value.
const everything = `
replicas: 5
image: {repository: registry.example/countd, tag: 0.1.7, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
clusterName: prod
clusterDomain: k8s.example
zone: z1
oneNodePerMachine: false
insecure: true
tls: {secret: web-cert}
clusterTLS: {secret: node-cert, name: node.countd.internal}
gossip: {secret: gossip}
auth: {mode: permissive, rootTokenSecret: root-token}
sources: {secret: brokers}
allowedHosts: [counts.example]
extraArgs: [--cold-after=720h, --log-format=json]
service: {type: LoadBalancer, annotations: {a: b}, http: 80, redis: 6379}
resources: {requests: {cpu: "4", memory: 30Gi}, limits: {memory: 30Gi}}
storage: {className: fast, size: 300Gi}
shutdownDelaySeconds: 20
podAnnotations: {c: d}
podLabels: {e: f}
nodeSelector: {disk: nvme}
tolerations: [{key: dedicated, operator: Equal, value: countd, effect: NoSchedule}]
priorityClassName: high
`

// objects has the Kubernetes objects that the chart makes.
type objects struct {
	set      apps.StatefulSet
	config   core.ConfigMap
	budget   policy.PodDisruptionBudget
	services map[string]core.Service
	notes    string
}

func values(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	do(t, yaml.Unmarshal([]byte(text), &v))
	return v
}

func render(text string) (o objects, err error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return o, err
	}
	var set map[string]any
	if err := yaml.Unmarshal([]byte(text), &set); err != nil {
		return o, err
	}
	all, err := util.ToRenderValues(chart, set, common.ReleaseOptions{Name: "countd", Namespace: "counts", IsInstall: true}, nil)
	if err != nil {
		return o, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return o, err
	}
	o.services = map[string]core.Service{}
	for name, content := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			o.notes = content
			continue
		}
		for _, document := range regexp.MustCompile(`(?m)^---$`).Split(content, -1) {
			if err := o.decode(document); err != nil {
				return o, fmt.Errorf("%s: %w\n%s", name, err, document)
			}
		}
	}
	return o, nil
}

// decode adds the object of a YAML document. It refuses fields that Kubernetes does not have.
func (o *objects) decode(document string) error {
	var kind struct{ Kind string }
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return err
	}
	var service core.Service
	into, known := map[string]any{"StatefulSet": &o.set, "ConfigMap": &o.config, "PodDisruptionBudget": &o.budget, "Service": &service}[kind.Kind]
	if !known {
		if strings.TrimSpace(document) == "" {
			return nil
		}
		return fmt.Errorf("the test does not know %q", kind.Kind)
	}
	err := yaml.UnmarshalStrict([]byte(document), into)
	if kind.Kind == "Service" {
		o.services[service.Name] = service
	}
	return err
}

func TestChart(t *testing.T) {
	first, err := render(closed)
	do(t, err)
	secrets := first.secrets(t)
	program, err := countd()
	do(t, err)
	version, err := exec.Command(program, "version").Output()
	do(t, err)
	released, _, _ := strings.Cut(strings.Fields(string(version))[1], "+") // without the commit
	if image := first.set.Spec.Template.Spec.Containers[0].Image; image != "countd:"+released {
		t.Errorf("Chart.yaml has %s, this is %s", image, version)
	}
	for name, set := range map[string]string{"insecure": "insecure: true", "closed": closed, "everything": everything} {
		t.Run(name, func(t *testing.T) {
			for _, m := range lint.RunAll(chartDir, values(t, set), "counts").Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
			o, err := render(set)
			do(t, err)
			if t.Failed() || o.notes == "" {
				t.Errorf("notes %q", o.notes)
			}
			o.check(t)
			root := t.TempDir()
			o.mount(t, root, secrets)
			env, args := o.pod(0)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "/etc/countd/", root+"/etc/countd/")
			}
			checkSettings(t, env, args)
		})
	}
	if _, err := render(""); err == nil || !strings.Contains(err.Error(), "insecure=true") {
		t.Errorf("values that would open all ports to anybody: %v", err)
	}
}

// TestEveryValueIsSet checks that the test covers the chart: the constant everything sets each value
// of values.yaml to a different value.
func TestEveryValueIsSet(t *testing.T) {
	defaults, err := os.ReadFile(chartDir + "/values.yaml")
	do(t, err)
	var differ func(path string, d, e map[string]any)
	differ = func(path string, d, e map[string]any) {
		for key, value := range d {
			below, nested := value.(map[string]any)
			set, has := e[key]
			if setBelow, ok := set.(map[string]any); nested && len(below) > 0 && ok && path+key != "resources" {
				differ(path+key+".", below, setBelow)
			} else if !has || fmt.Sprint(value) == fmt.Sprint(set) {
				t.Errorf("%s%s is %v", path, key, set)
			}
		}
		for key := range e {
			if _, has := d[key]; !has && !strings.HasPrefix(path, "service.annotations") {
				t.Errorf("values.yaml lacks %s%s", path, key)
			}
		}
	}
	differ("", values(t, string(defaults)), values(t, everything))
}

// check fails the test unless the objects meet the requirements of pods and rollouts.
func (o *objects) check(t *testing.T) {
	t.Helper()
	pod, container := o.set.Spec.Template.Spec, o.set.Spec.Template.Spec.Containers[0]
	nodes := o.services[o.set.Spec.ServiceName]
	if nodes.Spec.ClusterIP != "None" || !nodes.Spec.PublishNotReadyAddresses {
		t.Errorf("the nodes' service is %+v", nodes.Spec)
	}
	labels := o.set.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"StatefulSet": o.set.Spec.Selector.MatchLabels, "budget": o.budget.Spec.Selector.MatchLabels,
		"nodes": nodes.Spec.Selector, "clients": o.services["countd"].Spec.Selector,
		"zones": pod.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s selects %q, the pods have %q", what, selector, labels)
			}
		}
		if len(selector) == 0 {
			t.Errorf("%s selects everything", what)
		}
	}
	ports := map[string]bool{}
	for _, p := range container.Ports {
		ports[p.Name] = true
	}
	for _, p := range o.services["countd"].Spec.Ports {
		if !ports[p.TargetPort.StrVal] {
			t.Errorf("the service's port %+v leads nowhere", p)
		}
	}
	if got := o.budget.Spec.MaxUnavailable.IntValue(); got != 1 {
		t.Errorf("the budget is %d", got)
	}
	if o.set.Spec.PodManagementPolicy != apps.ParallelPodManagement {
		t.Error("pods start one after the other, and the first waits for the others")
	}
	if *pod.TerminationGracePeriodSeconds <= 10+5 || container.Lifecycle != nil {
		t.Errorf("grace %d s, hooks %v", *pod.TerminationGracePeriodSeconds, container.Lifecycle)
	}
	// Check the requirements of the restricted Pod Security Standard, and a read-only root file
	// system.
	of, all := container.SecurityContext, pod.SecurityContext
	if !*all.RunAsNonRoot || *all.RunAsUser != 65532 || *all.FSGroup != 65532 || all.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
		*of.AllowPrivilegeEscalation || !*of.ReadOnlyRootFilesystem || !slices.Equal(of.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("security contexts %+v and %+v", all, of)
	}
	for what, probe := range map[string]*core.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe.HTTPGet.Path != what || !ports[probe.HTTPGet.Port.StrVal] {
			t.Errorf("the probe of %s is %+v", what, probe)
		}
	}
	if container.StartupProbe.HTTPGet.Path != "/healthz" {
		t.Error("a node that waits for others is not ready, and would be killed")
	}
}

// pod returns the environment and the arguments of a pod, expanded as by the kubelet.
func (o *objects) pod(number int) (env, args []string) {
	container := o.set.Spec.Template.Spec.Containers[0]
	name := fmt.Sprintf("%s-%d", o.set.Name, number)
	vars := map[string]string{}
	for _, e := range container.Env {
		switch from := e.ValueFrom; {
		case from == nil:
			vars[e.Name] = e.Value
		case from.ConfigMapKeyRef != nil:
			vars[e.Name] = o.config.Data[from.ConfigMapKeyRef.Key]
		case from.FieldRef.FieldPath == "metadata.name":
			vars[e.Name] = name
		default: // a label that the pod lacks
			vars[e.Name] = ""
		}
	}
	for key, value := range vars {
		env = append(env, key+"="+value)
	}
	for _, arg := range container.Args {
		args = append(args, regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(arg, func(v string) string { return vars[v[2:len(v)-1]] }))
	}
	return env, args
}

// nodes returns the first three pods as nodes that runCluster runs.
func (o *objects) nodes(of *image) (nodes []node) {
	for i := range 3 {
		env, args := o.pod(i)
		nodes = append(nodes, node{host: fmt.Sprintf("%s-%d.%s", o.set.Name, i, o.domain()), env: env, args: args, check: of.health[1:]})
	}
	return nodes
}

// domain returns the DNS domain of the pods.
func (o *objects) domain() string {
	for _, arg := range o.set.Spec.Template.Spec.Containers[0].Args {
		if domain, is := strings.CutPrefix(arg, "--join="); is {
			return strings.TrimSuffix(domain, ":7402")
		}
	}
	return ""
}

const rootToken = "root-token-of-the-test-0123456789abcdef"

// secrets returns the files of the secrets: for each volume, file names and contents.
func (o *objects) secrets(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	countctl := func(args ...string) {
		t.Helper()
		cmd := exec.Command("go", append([]string{"run", "-C", repository, "-trimpath", "./cmd/countctl", "cert"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("countctl cert %q: %v\n%s", args, err, out)
		}
	}
	countctl("create-ca", "--dir", dir)
	countctl("node", "countd-node", "countd", "*."+o.domain(), "--dir", dir)
	cert := map[string][]byte{}
	for as, name := range map[string]string{"tls.crt": "countd-node.crt", "tls.key": "countd-node.key", "ca.crt": "ca.crt"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		do(t, err)
		cert[as] = content
	}
	return map[string]map[string][]byte{
		"tls": cert, "cluster-tls": cert, "sources": {},
		"gossip":     {"gossip.key": []byte(base64.StdEncoding.EncodeToString(make([]byte, 32)))},
		"root-token": {"token": []byte(rootToken)},
	}
}

// mount writes the files of the secrets that a pod mounts below root, as the kubelet does.
func (o *objects) mount(t *testing.T, root string, secrets map[string]map[string][]byte) {
	t.Helper()
	pod := o.set.Spec.Template.Spec
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.Name == "data" {
			continue
		}
		i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name })
		if i < 0 || pod.Volumes[i].Secret.SecretName == "" || !m.ReadOnly {
			t.Fatalf("mount %+v of %+v", m, pod.Volumes)
		}
		do(t, os.MkdirAll(root+m.MountPath, 0o755))
		for name, content := range secrets[m.Name] {
			path := filepath.Join(root+m.MountPath, name)
			do(t, os.WriteFile(path, content, fs.FileMode(*pod.Volumes[i].Secret.DefaultMode)))
			if os.Getuid() == 0 {
				do(t, os.Chown(path, 0, int(*pod.SecurityContext.FSGroup)))
			}
		}
	}
}
