#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tells what the services do, by doing it on the development cluster.
set -euo pipefail
cd "$(dirname "$0")"
state=$(cd ../.. && pwd)/.devcluster
export KUBECONFIG=$state/kubeconfig PATH=$state/bin:$PATH

step() { printf '\n%s\n' "$*"; }
run() { printf '$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9./_-]*\)'/\1/g"; "$@"; }
kube() { run kubectl -n tenant-demo "$@"; }

# refused NAME GPUS [sed expression]: a VM that gets no instance, and its reason.
refused() {
  sed -e "s/name: render$/name: $1/" -e "s|cozystack.io/gpus: .*|cozystack.io/gpus: '$2'|" -e "${3:-}" vm.yaml |
    kubectl apply -f - >/dev/null
  printf '\n%s names %s%s:\n' "$1" "$2" "${4:-}"
  kubectl -n tenant-demo wait "vm/$1" --for=condition=Failure --timeout=60s >/dev/null
  local message
  message=$(kubectl -n tenant-demo get "vm/$1" -o 'jsonpath={.status.conditions[?(@.type=="Failure")].message}')
  if [[ $message != *'"vmi-webhook.gpu.cozystack.io" denied the request: '* ]]; then
    printf 'this is no refusal: %s\n' "$message" >&2
    exit 1
  fi
  fold -s -w 96 <<<"${message#*denied the request: }" | sed 's/^/  /'
}

refusal=$(mktemp)
trap 'rm -f "$refusal"' EXIT

# Another run begins anew.
kubectl delete namespace tenant-demo tenant-acme --ignore-not-found >/dev/null

step "1. The hoster sells two classes of GPU, each on nodes that nothing else may use."
run kubectl apply -f classes.yaml
run kubectl get gpuclasses
run kubectl get nodes -o 'custom-columns=NODE:.metadata.name,TAINT:.spec.taints[*].value,L40S:.status.allocatable.nvidia\.com/L40S-24C,H100:.status.allocatable.nvidia\.com/H100'

step "2. A tenant, whose namespace is entitled to vGPU, names a class and a count on a VM."
run kubectl apply -f tenant.yaml -f vm.yaml
kube get vm render -o 'jsonpath={.spec.template.metadata.annotations}{"\n"}'
kubectl -n tenant-demo wait vm/render --for=condition=Ready --timeout=60s >/dev/null
echo "The class's licence is copied into the namespace, and is in step with the label:"
kube get secrets
run kubectl label namespace tenant-demo namespace.cozystack.io/vgpu-
kubectl -n tenant-demo wait secret/gpu-license-l40s-24c --for=delete --timeout=60s >/dev/null
kube get secrets
run kubectl label namespace tenant-demo namespace.cozystack.io/vgpu=true
kubectl -n tenant-demo wait secret/gpu-license-l40s-24c --for=create --timeout=60s >/dev/null

step "3. KubeVirt's instance of it has the device, and as its last disk the vGPU licence."
kube get vmi render -o 'custom-columns=PHASE:.status.phase,GPU:.spec.domain.devices.gpus[*].name,DEVICE:.spec.domain.devices.gpus[*].deviceName,DISKS:.spec.domain.devices.disks[*].name'

step "4. Its pod requests the device, mounts the licence, tolerates the class's taint, and is on its node."
kube get pods -o 'custom-columns=POD:.metadata.name,REQUESTS:.spec.containers[0].resources.requests.nvidia\.com/L40S-24C,SECRET:.spec.volumes[*].secret.secretName,TOLERATES:.spec.tolerations[*].value,NODE:.spec.nodeName'

step "5. What cannot work is refused with every reason at once, where the tenant looks: on the VM."
refused greedy '[{"className":"h100","count":5}]'
refused doubtful '[{"className":"l40s-24c","count":2},{"className":"a100","count":1}]'
refused smuggler '[{"className":"h100","count":1}]' \
  's|          disks:|          gpus: [{name: mine, deviceName: nvidia.com/L40S-24C}]\n          disks:|' \
  ' and brings a device of its own'
kube get vms

step "6. A tenant has a budget of GPUs, and what would exceed it is refused as it is written."
run kubectl apply -f budget.yaml -f instance.yaml
if sed 's/name: train/name: more/' instance.yaml | kubectl apply -f - 2>"$refusal"; then
  echo 'a VM beyond the budget was admitted' >&2
  exit 1
fi
printf '\nmore names another 2 of h100:\n'
fold -s -w 96 <<<"$(sed 's/.*denied the request: //' "$refusal")" | sed 's/^/  /'
kubectl -n tenant-acme wait gpubudget/gpu --for='jsonpath={.status.pools[0].used}=2' --timeout=60s >/dev/null
run kubectl get gpubudgets -A

step "Next, try it yourself:"
cat <<TEXT
  export KUBECONFIG=$KUBECONFIG
  export PATH=$state/bin:\$PATH
  kubectl explain gpuclass.spec
  kubectl patch gpuclass h100 --type merge -p '{"spec":{"maxCount":8}}'   # greedy starts within minutes
  kubectl label namespace tenant-demo namespace.cozystack.io/vgpu-        # no new vGPU VM here
  kubectl -n tenant-acme delete vminstance train && kubectl get gpubudgets -A   # free again
  less $state/logs/vmi-webhook.log   # each decision, with its reasons
  make down                          # ends the cluster and deletes its state
TEXT
